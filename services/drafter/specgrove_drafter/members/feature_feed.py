"""Feeds an SSM the target's features: which maps a row gets, and what they make of its states.

    features of a base of 5 tokens     t0 t1 t2 t3 t4 | a  b  c      rows of a draft, by their token
    distance                                       1    2  3  4      a row at position q: q - 5 + 2

A base that has grown since only moves the distances up: features of an earlier base still serve deeper rows. Nearer
than 1 or farther than the maps go, a row is what the SSM alone makes of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from specgrove.features import FeatureLayout, TargetFeatures
from specgrove.runtime.features import decode_parts
from specgrove.runtime.packed_linear import PackWeight
from specgrove.runtime.state_tap import RewriteStates
from specgrove_drafter.jobs import DraftJob, SessionRef
from specgrove_drafter.members.feature_maps import FeatureMaps
from specgrove_drafter.members.map_products import NO_MAP, CompiledMaps, MapProducts, Offsets, TorchMaps


@dataclass(frozen=True, slots=True)
class _Fed:
    """What the features of a session add to a row, by distance; None when they could not be read."""

    features: TargetFeatures
    offsets: Offsets | None


class FeatureFeed:
    """The maps of one SSM at work. `sent` is what the drafter as a whole asks for; owned by the engine's thread.

    `pack` keeps the maps as packed matrices; without it they stay as they are. `may_compile`: int8 maps go through
    compiled products where this CPU has them.
    """

    def __init__(
        self,
        maps: FeatureMaps,
        sent: FeatureLayout,
        *,
        device: torch.device | str = "cpu",
        pack: PackWeight | None = None,
        may_compile: bool = False,
        on_fed: Callable[[int], None] = lambda num_rows: None,
    ) -> None:
        self._max_distance = maps.max_distance
        self._sent = sent
        self._own_parts = [*(sent.layers.index(layer) for layer in maps.layout.layers), len(sent.layers)]
        self._takes_all_parts = self._own_parts == [*range(sent.num_parts)]
        self._device = torch.device(device)
        self._on_fed = on_fed
        self._unfed_map = NO_MAP if maps.token_map is None else maps.max_distance
        fast = CompiledMaps.of(maps) if may_compile and self._device.type == "cpu" else None
        self._products: MapProducts = fast or TorchMaps(maps, self._device, pack)
        self._fed: dict[SessionRef, _Fed] = {}

    def before_head(self, rows: Sequence[tuple[DraftJob, int]]) -> RewriteStates | None:
        """What to do with the states of these rows (a job and a depth below its root each, 0 = the root itself) before
        they go into the head; None when nothing is to be done."""
        self._read([job for job, _ in rows])
        numbers = [self._unfed_map] * len(rows)
        offsets: list[torch.Tensor | None] = [None] * len(rows)
        num_fed = 0
        for index, (job, depth) in enumerate(rows):
            of_job = self._offsets(job)
            if job.features is None or of_job is None:
                continue
            distance = job.base_len + depth - job.features.base_len + 1
            if 1 <= distance <= self._max_distance:
                numbers[index], offsets[index] = distance - 1, of_job[distance - 1]
                num_fed += 1
        if num_fed:
            self._on_fed(num_fed)
        if num_fed == 0 and self._unfed_map == NO_MAP:
            return None

        def rewrite(states: torch.Tensor) -> torch.Tensor:  # float [1, W, H]
            return self._products.mapped(states[0], numbers, offsets)[None]

        return rewrite

    def release(self, session: SessionRef) -> None:
        self._fed.pop(session, None)

    def _offsets(self, job: DraftJob) -> Offsets | None:
        fed = self._fed.get(job.session)
        return fed.offsets if fed is not None and fed.features == job.features else None

    @torch.inference_mode()
    def _read(self, jobs: Sequence[DraftJob]) -> None:
        """Multiply the features that are new, of all sessions at once."""
        wanted: list[tuple[SessionRef, TargetFeatures, torch.Tensor]] = []
        for job in {job.session: job for job in jobs}.values():
            fed = self._fed.get(job.session)
            if job.features is None or (fed is not None and fed.features == job.features):
                continue
            parts = decode_parts(job.features.values, self._sent.hidden_size)
            if parts is None or parts.shape[0] != self._sent.num_parts:
                self._fed[job.session] = _Fed(job.features, None)
            else:
                own = parts if self._takes_all_parts else parts[self._own_parts]
                wanted.append((job.session, job.features, own.flatten()))
        if wanted:
            vectors = torch.stack([vector for _, _, vector in wanted]).to(self._device)
            offsets = self._products.offsets(vectors)
            for (session, features, _), of_session in zip(wanted, offsets, strict=True):
                self._fed[session] = _Fed(features, of_session)


class JointFeed:
    """The feeds of several SSMs that run as one: each changes the states of its own model."""

    def __init__(self, feeds: Sequence[FeatureFeed | None]) -> None:
        self._feeds = tuple(feeds)

    def before_head(self, rows: Sequence[tuple[DraftJob, int]]) -> RewriteStates | None:
        """As `FeatureFeed.before_head`, for states [K, W, H]."""
        rewrites = [None if feed is None else feed.before_head(rows) for feed in self._feeds]

        def rewrite(states: torch.Tensor) -> torch.Tensor:
            parts = (states[model : model + 1] for model in range(len(rewrites)))
            return torch.cat([part if own is None else own(part) for own, part in zip(rewrites, parts, strict=True)])

        return rewrite if any(rewrites) else None

    def release(self, session: SessionRef) -> None:
        for feed in self._feeds:
            if feed is not None:
                feed.release(session)
