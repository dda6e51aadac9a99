"""Feature maps in compiled int8 products: what torch makes of the same maps, and only where nothing is rounded anew."""

from __future__ import annotations

import pytest
import torch

from specgrove.features import FeatureLayout
from specgrove.runtime.int8_linear import is_int8_supported
from specgrove.runtime.int8_weights import dequantize_rows, quantize_rows
from specgrove_drafter.members.feature_maps import FeatureMaps
from specgrove_drafter.members.map_products import NO_MAP, CompiledMaps, TorchMaps

pytest.importorskip("numba")
pytestmark = pytest.mark.skipif(not is_int8_supported(), reason="needs a CPU with AVX512 VNNI and torch's fbgemm")
DEPTHS, HIDDEN, TARGET = 3, 48, 40


def random_maps(*, are_int8: bool = True, has_token_map: bool = True) -> FeatureMaps:
    generator = torch.Generator().manual_seed(3)

    def random(*shape: int) -> torch.Tensor:
        matrix = torch.randn(shape, generator=generator) * 0.2
        return dequantize_rows(*quantize_rows(matrix)) if are_int8 else matrix

    token_map = random(HIDDEN, HIDDEN) if has_token_map else None
    features = 2 * TARGET
    return FeatureMaps(
        FeatureLayout((2,), TARGET), random(DEPTHS, HIDDEN, HIDDEN), random(DEPTHS, features, HIDDEN), token_map
    )


def test_states_and_features_are_mapped_as_in_torch() -> None:
    maps, generator = random_maps(), torch.Generator().manual_seed(4)
    ways = [CompiledMaps.of(maps), TorchMaps(maps, torch.device("cpu"), None)]
    vectors, states = torch.randn(2, 2 * TARGET, generator=generator), torch.randn(6, HIDDEN, generator=generator)
    results = []
    for way in ways:
        assert way is not None
        first, second = way.offsets(vectors)
        numbers = [0, DEPTHS, 2, 0, NO_MAP, 1]
        results.append(way.mapped(states, numbers, [first[0], None, second[2], second[0], None, first[1]]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-4, atol=1e-4 * float(results[1].abs().max()))
    assert torch.equal(results[0][4], states[4])


def test_a_row_is_bit_for_bit_the_same_beside_others() -> None:
    compiled, states = CompiledMaps.of(random_maps()), torch.randn(5, HIDDEN)
    assert compiled is not None
    together = compiled.mapped(states, [1] * 5, [None] * 5)
    for row in range(5):
        assert torch.equal(compiled.mapped(states[row : row + 1], [1], [None])[0], together[row])


def test_maps_that_are_not_int8_stay_as_they_are() -> None:
    assert CompiledMaps.of(random_maps(are_int8=False)) is None


def test_there_need_not_be_a_token_map() -> None:
    assert CompiledMaps.of(random_maps(has_token_map=False)) is not None
