"""An ensemble as the loops see it, and the SSMs that ensembles are made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from specgrove.features import FeatureLayout
from specgrove.runtime.loading import LoadedModel, Weights
from specgrove.tree import ExpansionConfig
from specgrove_bench.paper.story import Story
from specgrove_drafter.ensemble import Ensemble, EnsembleDraft
from specgrove_drafter.jobs import DraftJob
from specgrove_drafter.members.feature_maps import joint_layout, read_layout
from specgrove_drafter.members.loaded_ssm import LoadedSsm, joint_feed, load_ssm, stacked, stacks_of
from specgrove_drafter.members.member import Member
from specgrove_drafter.members.prompt_lookup import PromptLookupMember
from specgrove_drafter.members.runtime_model import RuntimeDraftModel
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.calibration import Calibration
from specgrove_drafter.trees.child_sampler import ChildSampler
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, ExpansionPolicy
from specgrove_drafter.trees.mixing import Mixing
from specgrove_drafter.trees.sent_draft import SentDraft, VerifiedDraft

_DRAWS_SEED = 0x5EED  # of drawn children, apart from every session's seed
# Every tree takes its whole budget, or trees of different members could not be compared.
_WHOLE_BUDGET = BestFirst(min_path_prob=0.0)


MemberMaker = Callable[[int, Calibration], Member]  # from the member's bit and the tables that scale its estimates


@dataclass(frozen=True, slots=True)
class Ssm:
    """A loaded SSM under the name the tables give it, or several that run as one."""

    name: str
    model: RuntimeDraftModel
    max_fed_depth: int = 0  # down to which depth it sees the target's features; 0 = it sees tokens only
    part_names: tuple[str, ...] = ()
    mixing: Mixing | None = None

    @property
    def is_feature_fed(self) -> bool:
        return self.max_fed_depth > 0

    def grower(self, expansion: str = "") -> MemberMaker:
        """Makes a member of this SSM that grows static trees (`1,1,3`), or best-first ones that fill the budget."""
        return partial(self._member, expansion)

    def _member(self, expansion: str, bit: int, calibration: Calibration) -> Member:
        policy = ExpansionPolicy(ExpansionConfig.parse(expansion)) if expansion else BestFirstPolicy(_WHOLE_BUDGET)
        scale_of = partial(calibration.scale, bit)
        sampler = ChildSampler(_DRAWS_SEED + bit)
        if self.mixing is not None:
            self.mixing.forget()  # what one measurement taught must not pass on to the next
        return SsmMember(
            self.name, self.model, policy, scale_of, sampler=sampler, part_names=self.part_names, mixing=self.mixing
        )


@dataclass(frozen=True, slots=True)
class SsmPool:
    """The SSMs under comparison, and what they want to know of the target."""

    ssms: tuple[Ssm, ...]
    layout: FeatureLayout
    stacks: tuple[Ssm, ...] = ()  # SSMs of one shape that run as one, where there are several

    @property
    def together(self) -> tuple[Ssm, ...]:
        """All SSMs as a drafter runs them: stacks, and what is in none."""
        in_stacks = {name for stack in self.stacks for name in stack.part_names}
        return (*self.stacks, *(ssm for ssm in self.ssms if ssm.name not in in_stacks))

    @classmethod
    def load(cls, folders: Sequence[Path], target: LoadedModel, max_cached_tokens: int) -> SsmPool:
        """Raises `ModelLoadError`."""
        layout = joint_layout([read_layout(folder) for folder in folders])
        loaded = [
            load_ssm(name, str(folder), Weights.AUTO, "cpu", target.vocab_size, layout)
            for name, folder in zip(ssm_names(folders), folders, strict=True)
        ]

        def ssm_of(group: Sequence[LoadedSsm], name: str) -> Ssm:
            mixing = Mixing(len(group))
            model = RuntimeDraftModel(
                stacked(group),
                target_vocab_size=target.vocab_size,
                max_cached_tokens=max_cached_tokens,
                feed=joint_feed(group),
                mixing=mixing,
            )
            return Ssm(name, model, group[0].max_fed_depth, tuple(ssm.name for ssm in group), mixing)

        stacks = [group for group in stacks_of(loaded) if len(group) > 1]
        return cls(
            tuple(ssm_of([ssm], ssm.name) for ssm in loaded),
            layout,
            tuple(ssm_of(group, "+".join(ssm.name for ssm in group)) for group in stacks),
        )


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
