"""An ensemble as the loops see it, and the SSMs that ensembles are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specgrove.features import FeatureLayout
from specgrove.runtime.loading import LoadedModel, Weights, load_model
from specgrove.tree import ExpansionConfig
from specgrove_bench.paper.story import Story
from specgrove_drafter.ensemble import Ensemble, EnsembleDraft
from specgrove_drafter.jobs import DraftJob
from specgrove_drafter.members.feature_feed import FeatureFeed
from specgrove_drafter.members.feature_maps import FeatureMaps, joint_layout
from specgrove_drafter.members.member import Member
from specgrove_drafter.members.prompt_lookup import PromptLookupMember
from specgrove_drafter.members.runtime_model import RuntimeDraftModel
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.calibration import Calibration
from specgrove_drafter.trees.child_sampler import ChildSampler
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, ExpansionPolicy
from specgrove_drafter.trees.sent_draft import SentDraft, VerifiedDraft

_DRAWS_SEED = 0x5EED  # of drawn children, apart from every session's seed
# Every tree takes its whole budget, or trees of different members could not be compared.
_WHOLE_BUDGET = BestFirst(min_path_prob=0.0)


MemberMaker = Callable[[int, Calibration], Member]  # from the member's bit and the tables that scale its estimates


@dataclass(frozen=True, slots=True)
class Ssm:
    """A loaded SSM under the name the tables give it."""

    name: str
    model: RuntimeDraftModel
    max_fed_depth: int = 0  # down to which depth it sees the target's features; 0 = it sees tokens only

    @property
    def is_feature_fed(self) -> bool:
        return self.max_fed_depth > 0

    def grower(self, expansion: str = "") -> MemberMaker:
        """Makes a member of this SSM that grows static trees (`1,1,3`), or best-first ones that fill the budget."""
        return partial(self._member, expansion)

    def _member(self, expansion: str, bit: int, calibration: Calibration) -> Member:
        policy = ExpansionPolicy(ExpansionConfig.parse(expansion)) if expansion else BestFirstPolicy(_WHOLE_BUDGET)
        scale_of = partial(calibration.scale, bit)
        return SsmMember(self.name, self.model, policy, scale_of, sampler=ChildSampler(_DRAWS_SEED + bit))


@dataclass(frozen=True, slots=True)
class SsmPool:
    """The SSMs under comparison, and what they want to know of the target."""

    ssms: tuple[Ssm, ...]
    layout: FeatureLayout

    @classmethod
    def load(cls, folders: Sequence[Path], target: LoadedModel, max_cached_tokens: int) -> SsmPool:
        """Raises `ModelLoadError`."""
        maps = [FeatureMaps.load(folder) for folder in folders]
        layout = joint_layout([own.layout for own in maps if own is not None])
        ssms = []
        for name, folder, own in zip(ssm_names(folders), folders, maps, strict=True):
            loaded = load_model(folder, target_vocab_size=target.vocab_size)
            if own is not None and own.head_rows is not None:
                loaded.replace_head(own.head_rows)
            is_packed = loaded.weights == Weights.FP16_PACKED
            feed = None if own is None else FeatureFeed(own, layout, device=loaded.device, is_packed=is_packed)
            model = RuntimeDraftModel(
                loaded, target_vocab_size=target.vocab_size, max_cached_tokens=max_cached_tokens, feed=feed
            )
            ssms.append(Ssm(name, model, own.max_distance if own is not None else 0))
        return cls(tuple(ssms), layout)


def ssm_names(folders: Sequence[Path]) -> tuple[str, ...]:
    """The folders' names, numbered where they repeat."""
    stems = [folder.resolve().name for folder in folders]
    return tuple(
        stem if stems.count(stem) == 1 else f"{stem}#{stems[: place + 1].count(stem)}"
        for place, stem in enumerate(stems)
    )


class Speculator:
    """Drafts for many sessions at once."""

    def __init__(self, makers: Sequence[MemberMaker]) -> None:
        """Members are made anew: what one has learned must not pass on to the next measurement."""
        calibration = Calibration()
        members = [make(bit, calibration) for bit, make in enumerate(makers)]
        self._ensemble = Ensemble(members, calibration)

    @property
    def member_names(self) -> tuple[str, ...]:
        """In the order of their bits."""
        return self._ensemble.member_names

    def draft(self, jobs: Sequence[DraftJob]) -> list[EnsembleDraft]:
        """One draft for each job. Long prompts are read over several calls; nothing is answered before all are read."""
        drafts = self._ensemble.draft(jobs)
        while any(draft.is_behind for draft in drafts):
            drafts = self._ensemble.draft(jobs)
        return drafts

    def learn(self, job: DraftJob, draft: EnsembleDraft, committed: Sequence[int]) -> None:
        """Tell the ensemble what became of its draft: it calibrates its estimates by it."""
        self._ensemble.learn(VerifiedDraft(SentDraft(job, draft.tree, draft.proposals), tuple(committed)))

    def release(self, stories: Sequence[Story]) -> None:
        for story in stories:
            self._ensemble.release(story.session)


def make_lookup(bit: int, calibration: Calibration) -> Member:
    """The model-free member."""
    return PromptLookupMember()
