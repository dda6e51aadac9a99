"""From settings to a drafter: every part made by hand, top to bottom. Used by `__main__`, by tests and by the bench."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from specgrove.errors import ModelLoadError
from specgrove.features import FeatureLayout
from specgrove.runtime.loading import model_folder
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
from specgrove_drafter.members.feature_maps import joint_layout, read_layout
from specgrove_drafter.members.loaded_ssm import LoadedSsm, joint_feed, load_ssm, stacked, stacks_of
from specgrove_drafter.members.member import Member
from specgrove_drafter.members.prompt_lookup import PromptLookupMember
from specgrove_drafter.members.random_trees import RandomMember
from specgrove_drafter.members.runtime_model import RuntimeDraftModel
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.metrics import DrafterMetrics
from specgrove_drafter.service import SpeculateClient
from specgrove_drafter.trees.calibration import Calibration
from specgrove_drafter.trees.growth import policy_of
from specgrove_drafter.trees.mixing import Mixing
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
    """Load every SSM (seconds each) and put the members together. Raises `ModelLoadError`.

    SSMs of one shape become one member, which runs all of them in one forward and proposes from the mean of their laws.
    """
    torch.set_num_threads(config.threads or torch.get_num_threads())
    sent = feature_layout(config)
    ssms = [
        load_ssm(
            name,
            folder,
            config.weights,
            config.device,
            target.vocab_size,
            sent,
            metrics,
            attention=config.attention,
            cuda_graphs=config.cuda_graphs,
            cpu_kernels=config.cpu_kernels,
        )
        for name, folder in zip(member_names(config), map(model_folder, config.ssm), strict=False)
    ]
    members: list[Member] = []
    calibration = Calibration()
    bit = 0
    for group in stacks_of(ssms) if config.stack_ssms else [[ssm] for ssm in ssms]:
        members.append(_ssm_member(group, bit, config, target.vocab_size, metrics, calibration))
        bit += len(group)
    if config.prompt_lookup:
        members.append(PromptLookupMember())
    if config.random_member:
        members.append(RandomMember(target.vocab_size, config.random_member_seed))
    return Ensemble(members, calibration)


def _ssm_member(
    group: Sequence[LoadedSsm],
    bit: int,
    config: DrafterConfig,
    target_vocab_size: int,
    metrics: DrafterMetrics,
    calibration: Calibration,
) -> SsmMember:
    """The member of one SSM, or of several that run as one."""
    names = [ssm.name for ssm in group]
    mixing = Mixing(len(group))

    observers = [metrics.forward_observer(name) for name in names]

    def on_forward(num_rows: int) -> None:
        for observe in observers:
            observe(num_rows)

    model = RuntimeDraftModel(
        stacked(group),
        target_vocab_size=target_vocab_size,
        max_cached_tokens=config.kv_tokens,
        on_forward=on_forward,
        feed=joint_feed(group),
        mixing=mixing,
    )
    return SsmMember(
        "+".join(names),
        model,
        policy_of(config.expansion, config.best_first),
        partial(calibration.scale, bit),
        naive_children=config.naive_children,
        part_names=names,
        mixing=mixing,
    )


def build_ahead(config: DrafterConfig, ensemble: Ensemble, metrics: DrafterMetrics) -> AheadDrafting:
    """Drafting ahead as the settings want it, with its gauges."""
    governor = AheadGovernor(AheadMode(config.ahead), max_waste_share=config.max_ahead_share)
    metrics.is_drafting_ahead.set_function(lambda: float(governor.is_open))
    metrics.ahead_waste_share.set_function(lambda: governor.waste.share)
    for bit, name in enumerate(ensemble.member_names):
        first_bit = ensemble.first_bit(bit)
        metrics.calibration_error.labels(name).set_function(partial(ensemble.calibration.error, first_bit))
    limits = OutcomeLimits(config.max_ahead_outcomes, config.min_ahead_prob)
    return AheadDrafting(ensemble, governor, metrics, limits=limits)


def feature_layout(config: DrafterConfig) -> FeatureLayout:
    """What the SSMs together want to know of the target. Raises `ModelLoadError`."""
    return joint_layout([read_layout(Path(model_folder(source))) for source in config.ssm])


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
