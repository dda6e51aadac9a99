"""From settings to a drafter: every part made by hand, top to bottom. Used by `__main__`, by tests and by the bench."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from specgrove.errors import ModelLoadError
from specgrove.features import FeatureLayout
from specgrove.runtime.loading import LoadedModel, Weights, load_model, model_folder
from specgrove.session import Heartbeat, Pod, PodRegistry, Redis
from specgrove.telemetry import CollectorRegistry
from specgrove.text import Tokenizer
from specgrove_drafter.ahead import AheadDrafting
from specgrove_drafter.ahead_governor import AheadGovernor, AheadMode
from specgrove_drafter.config import DrafterConfig
from specgrove_drafter.discovery import Discovery
from specgrove_drafter.drafter import Drafter
from specgrove_drafter.engine import DraftEngine
from specgrove_drafter.ensemble import Ensemble
from specgrove_drafter.identity import DrafterIdentity
from specgrove_drafter.inbox import Inbox
from specgrove_drafter.links import VerifierLinks
from specgrove_drafter.members.feature_feed import FeatureFeed
from specgrove_drafter.members.feature_maps import FeatureMaps, joint_layout, read_layout
from specgrove_drafter.members.member import Member
from specgrove_drafter.members.prompt_lookup import PromptLookupMember
from specgrove_drafter.members.random_trees import RandomMember
from specgrove_drafter.members.runtime_model import RuntimeDraftModel
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.service import SpeculateClient
from specgrove_drafter.trees.calibration import Calibration
from specgrove_drafter.trees.growth import policy_of
from specgrove_drafter.trees.outcomes import OutcomeLimits


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
    calibration = Calibration()
    sent = feature_layout(config)
    for bit, (name, folder) in enumerate(zip(member_names(config), map(model_folder, config.ssm), strict=False)):
        loaded = load_model(folder, config.weights, config.device, target_vocab_size=target.vocab_size)
        model = RuntimeDraftModel(
            loaded,
            target_vocab_size=target.vocab_size,
            max_cached_tokens=config.kv_tokens,
            on_forward=partial(metrics.observe_forward, name),
            feed=load_feed(folder, loaded, sent, partial(metrics.observe_fed_rows, name)),
        )
        policy = policy_of(config.expansion, config.best_first)
        members.append(
            SsmMember(name, model, policy, partial(calibration.scale, bit), naive_children=config.naive_children)
        )
    if config.prompt_lookup:
        members.append(PromptLookupMember())
    if config.random_member:
        members.append(RandomMember(target.vocab_size, config.random_member_seed))
    return Ensemble(members, calibration)


def build_ahead(config: DrafterConfig, ensemble: Ensemble, metrics: DrafterMetrics) -> AheadDrafting:
    """Drafting ahead as the settings want it, with its gauges."""
    governor = AheadGovernor(AheadMode(config.ahead), max_waste_share=config.max_ahead_share)
    metrics.is_drafting_ahead.set_function(lambda: float(governor.is_open))
    metrics.ahead_waste_share.set_function(lambda: governor.waste.share)
    for bit, name in enumerate(ensemble.member_names):
        metrics.calibration_error.labels(name).set_function(partial(ensemble.calibration.error, bit))
    limits = OutcomeLimits(config.max_ahead_outcomes, config.min_ahead_prob)
    return AheadDrafting(ensemble, governor, metrics, limits=limits)


def feature_layout(config: DrafterConfig) -> FeatureLayout:
    """What the SSMs together want to know of the target. Raises `ModelLoadError`."""
    return joint_layout([read_layout(Path(model_folder(source))) for source in config.ssm])


def load_feed(
    folder: str, loaded: LoadedModel, sent: FeatureLayout, on_fed: Callable[[int], None]
) -> FeatureFeed | None:
    """What feeds the SSM in `folder` when the drafter asks for `sent`, and the head that its maps lead into in place;
    None for one that sees tokens only. Raises `ModelLoadError`."""
    maps = FeatureMaps.load(Path(folder))
    if maps is None:
        return None
    if maps.head_rows is not None:
        loaded.replace_head(maps.head_rows)
    is_packed = loaded.weights == Weights.FP16_PACKED
    return FeatureFeed(maps, sent, device=loaded.device, is_packed=is_packed, on_fed=on_fed)


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
    identity = DrafterIdentity(
        pod_id, incarnation, target.vocab_hash, names, config.max_sessions, feature_layout(config)
    )
    links = VerifierLinks(SpeculateClient(identity, inbox, metrics).speculate, metrics)
    pods = None if redis is None else PodRegistry(redis)
    pod = Pod("drafter", pod_id, incarnation, address, {"members": ",".join(names)})
    return Drafter(
        ensemble=ensemble,
        inbox=inbox,
        engine=DraftEngine(
            inbox, ensemble, metrics, build_ahead(config, ensemble, metrics), max_batch=config.max_batch
        ),
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
