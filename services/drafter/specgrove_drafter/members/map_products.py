"""The products of feature maps: in torch for all depths at once, or compiled, int8, for depths that are reached.

offsets    what the features of a base add to a row, by distance         features @ feature_maps[d]
mapped     states through the map of their distance, their offset added  states @ state_maps[d] + offset
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from specgrove.runtime.int8_linear import is_int8_supported
from specgrove.runtime.int8_weights import dequantize_rows, quantize_rows
from specgrove.runtime.packed_linear import PackWeight
from specgrove_drafter.members.feature_maps import FeatureMaps
from specgrove_kernels.cpu import compiled

if TYPE_CHECKING:
    from specgrove_kernels.cpu.int8_rows import Int8Rows

Product = Callable[[torch.Tensor], torch.Tensor]
NO_MAP = -1
# Of a matrix's largest number: what rounding it to int8 once more may change.
_EXACT = 1e-6


class Offsets(Protocol):
    """What the features of one base add, by distance (0 = the base's own choice)."""

    def __getitem__(self, distance: int) -> torch.Tensor: ...  # float32 [H]


class MapProducts(Protocol):
    """The maps of one SSM at work. Map d belongs to distance d, the one after the last is the token map."""

    def offsets(self, vectors: torch.Tensor) -> Sequence[Offsets]:  # float32 [N, F]
        """For each of N bases what its features add."""
        ...

    def mapped(
        self,
        states: torch.Tensor,  # float [W, H]
        numbers: Sequence[int],  # which map each row goes through, or NO_MAP
        offsets: Sequence[torch.Tensor | None],  # float32 [H] each
    ) -> torch.Tensor:  # as `states`, which stay as they are
        ...


class TorchMaps:
    """Maps as they are, or packed by `pack`."""

    def __init__(self, maps: FeatureMaps, device: torch.device, pack: PackWeight | None) -> None:
        token_maps = [] if maps.token_map is None else [maps.token_map]
        self._depths = maps.max_distance
        self._of_state = [_product(matrix, device, pack) for matrix in (*maps.state_maps, *token_maps)]
        # One product for all depths: a vector costs by the bytes of the maps, which are read once for a base.
        self._of_features = _product(torch.cat([*maps.feature_maps], dim=1), device, pack)

    def offsets(self, vectors: torch.Tensor) -> Sequence[Offsets]:
        return self._of_features(vectors).view(len(vectors), self._depths, -1).unbind(0)

    def mapped(
        self, states: torch.Tensor, numbers: Sequence[int], offsets: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        mapped = states.clone()
        for number in sorted({*numbers} - {NO_MAP}):
            rows = [row for row, own in enumerate(numbers) if own == number]
            result = self._of_state[number](states[rows].float())
            added = [offset for row in rows if (offset := offsets[row]) is not None]
            if added:  # rows of one map are fed all, or none
                result = result + torch.stack(added)
            mapped[rows] = result.to(states.dtype)
        return mapped


class CompiledMaps:
    """Maps that are int8 with a scale for each input, through compiled products."""

    def __init__(self, state_maps: Sequence[_Scaled], feature_maps: Sequence[_Scaled]) -> None:
        self._kept = [*state_maps, *feature_maps]
        self._of_state = np.array([one.addresses for one in state_maps])
        self._of_features = [np.array([one.addresses]) for one in feature_maps]
        self._width = state_maps[0].rows.num_outputs

    @classmethod
    def of(cls, maps: FeatureMaps) -> CompiledMaps | None:
        """None where this CPU has no fast int8 products or the maps are not int8."""
        if not (is_int8_supported() and compiled.is_available()):
            return None
        from specgrove_kernels.cpu import fed_states, int8_rows

        if not int8_rows.is_supported():
            return None
        fed_states.prepare()
        token_maps = [] if maps.token_map is None else [maps.token_map]
        of_state = [_Scaled.of(matrix) for matrix in (*maps.state_maps, *token_maps)]
        of_features = [_Scaled.of(matrix) for matrix in maps.feature_maps]
        exact = [one for one in (*of_state, *of_features) if one is not None]
        if len(exact) < len(of_state) + len(of_features):
            return None
        return cls(exact[: len(of_state)], exact[len(of_state) :])

    def offsets(self, vectors: torch.Tensor) -> Sequence[Offsets]:
        return [_WhenReached(self, vector[None]) for vector in vectors]

    def mapped(
        self, states: torch.Tensor, numbers: Sequence[int], offsets: Sequence[torch.Tensor | None]
    ) -> torch.Tensor:
        added = [0 if offset is None else offset.data_ptr() for offset in offsets]
        return self._map(self._of_state, np.array([numbers, added]), states)

    def offset(self, vector: torch.Tensor, distance: int) -> torch.Tensor:  # [1, F] -> [H]
        return self._map(self._of_features[distance], np.zeros((2, 1), dtype=np.int64), vector)[0]

    def _map(self, maps: np.ndarray, numbers: np.ndarray, rows: torch.Tensor) -> torch.Tensor:
        from specgrove_kernels.cpu.fed_states import map_rows

        out = torch.empty(len(rows), self._width)
        map_rows(maps, numbers, rows.contiguous().numpy(), out.numpy())
        return out


class _WhenReached:
    """The offsets of one base, each made when a row asks for it: most drafts end before the last depth."""

    def __init__(self, maps: CompiledMaps, vector: torch.Tensor) -> None:
        self._maps = maps
        self._vector = vector  # float32 [1, F]
        self._made: dict[int, torch.Tensor] = {}

    def __getitem__(self, distance: int) -> torch.Tensor:
        made = self._made.get(distance)
        if made is None:
            made = self._made[distance] = self._maps.offset(self._vector, distance)
        return made


class _Scaled:
    """A matrix [I, O] as int8 steps and a scale for each input."""

    def __init__(self, rows: Int8Rows, scales: torch.Tensor) -> None:
        self.rows = rows
        self.scales = scales  # float32 [I]

    @classmethod
    def of(cls, matrix: torch.Tensor) -> _Scaled | None:
        """None for a matrix that int8 does not hold as it is."""
        from specgrove_kernels.cpu.int8_rows import Int8Rows

        try:
            steps, scales = quantize_rows(matrix)
        except ValueError:
            return None
        if float((dequantize_rows(steps, scales) - matrix).abs().max()) > _EXACT * float(matrix.abs().max()):
            return None
        return cls(Int8Rows.of(steps.T, torch.ones(matrix.shape[1])), scales.float().contiguous())

    @property
    def addresses(self) -> tuple[int, int, int, int]:
        return (*self.rows.addresses, self.scales.data_ptr())


def _product(matrix: torch.Tensor, device: torch.device, pack: PackWeight | None) -> Product:
    """`rows @ matrix` for float32 [in, out]."""
    if pack is not None:
        return pack(matrix.T, None)
    on_device = matrix.to(device)
    return lambda rows: rows @ on_device
