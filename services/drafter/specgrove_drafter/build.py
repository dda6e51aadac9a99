"""From settings to a drafter: every part made by hand, top to bottom. Used by `__main__`, by tests and by the bench."""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from specgrove.errors import ModelLoadError
from specgrove.runtime.loading import load_model
from specgrove.session import Heartbeat, Pod, PodRegistry, Redis
from specgrove.telemetry import CollectorRegistry
from specgrove.text import Tokenizer
from specgrove_drafter.config import DrafterConfig
from specgrove_drafter.discovery import Discovery
from specgrove_drafter.drafter import Drafter
from specgrove_drafter.engine import DraftEngine
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.inbox import Inbox
from specgrove_drafter.links import VerifierLinks
from specgrove_drafter.members.member import Member
from specgrove_drafter.members.prompt_lookup import PromptLookupMember
from specgrove_drafter.members.random_trees import RandomMember
from specgrove_drafter.members.runtime_model import RuntimeDraftModel
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.service import DrafterIdentity, SpeculateClient
from specgrove_drafter.trees.growth import policy_of


@dataclass(frozen=True, slots=True)
class TargetVocab:
    """What a drafter must know of the target: the hash that verifiers compare, and how many token ids there are."""

    vocab_hash: str
    vocab_size: int

    @classmethod
    def read(cls, folder: str) -> TargetVocab:
        """From the target's folder. Raises `ModelLoadError` when there is no tokenizer in it."""
        tokenizer = Tokenizer.load(folder)
        # Models pad their vocabulary; ids up to the padded size may come over the wire.
        config = Path(folder) / "config.json"
        padded = json.loads(config.read_text()).get("vocab_size", 0) if config.is_file() else 0
        return cls(tokenizer.vocab_hash, max(tokenizer.vocab_size, padded))


def member_names(config: DrafterConfig) -> tuple[str, ...]:
    """Names in the order of member bits: SSMs by folder (numbered where they repeat), then the model-free ones."""
    names: list[str] = []
    for source in config.ssm:
        stem = Path(source).name or source
        same = sum(name == stem or name.startswith(f"{stem}#") for name in names)
        names.append(stem if not same else f"{stem}#{same + 1}")
    if config.prompt_lookup:
        names.append(PromptLookupMember.name)
    if config.random_member:
        names.append(RandomMember.name)
    return tuple(names)


def load_ensemble(config: DrafterConfig, target: TargetVocab, metrics: DrafterMetrics) -> Ensemble:
    """Load every SSM (seconds each) and put the members together. Raises `ModelLoadError`."""
    torch.set_num_threads(config.threads or torch.get_num_threads())
    members: list[Member] = []
    for name, source in zip(member_names(config), config.ssm, strict=False):
        model = RuntimeDraftModel(
            load_model(source, weights=config.weights, device=config.device, target_vocab_size=target.vocab_size),
            target_vocab_size=target.vocab_size,
            max_cached_tokens=config.kv_tokens,
            on_forward=partial(metrics.observe_forward, name),
        )
        members.append(SsmMember(name, model, policy_of(config.expansion, config.best_first)))
    if config.prompt_lookup:
        members.append(PromptLookupMember())
    if config.random_member:
        members.append(RandomMember(target.vocab_size, config.random_member_seed))
    return Ensemble(members)


def build_drafter(
    config: DrafterConfig,
    registry: CollectorRegistry,
    *,
    pod_id: str,
    address: str,
    redis: Redis | None = None,
) -> Drafter:
    """A drafter that is ready to be started: SSMs loaded, nothing dialled. `address` is where peers find its health.

    `redis` is used for discovery and registration when given; its owner closes it. Raises `ModelLoadError`.
    """
    target = TargetVocab.read(_tokenizer_folder(config))
    names = member_names(config)
    metrics = DrafterMetrics(registry, names)
    ensemble = load_ensemble(config, target, metrics)
    inbox = Inbox(max_sessions=config.max_sessions, max_mirror_tokens=config.max_session_tokens)
    metrics.mirrors.set_function(inbox.num_mirrors)
    incarnation = uuid.uuid4().hex
    identity = DrafterIdentity(pod_id, incarnation, target.vocab_hash, names, config.max_sessions)
    links = VerifierLinks(SpeculateClient(identity, inbox, metrics).speculate, metrics)
    pods = None if redis is None else PodRegistry(redis)
    pod = Pod("drafter", pod_id, incarnation, address, {"members": ",".join(names)})
    return Drafter(
        ensemble=ensemble,
        inbox=inbox,
        engine=DraftEngine(inbox, ensemble, metrics, max_batch=config.max_batch),
        links=links,
        discovery=Discovery(config.verifiers, pods, links),
        heartbeat=None if pods is None else Heartbeat(pods, pod),
        metrics=metrics,
    )


def _tokenizer_folder(config: DrafterConfig) -> str:
    if config.tokenizer is not None:
        return config.tokenizer
    if not (Path(config.ssm[0]) / "tokenizer.json").is_file():
        raise ModelLoadError(
            f"{config.ssm[0]} has no tokenizer.json; name the target's folder with --tokenizer, so that verifiers can "
            "see that token ids mean the same"
        )
    return config.ssm[0]
