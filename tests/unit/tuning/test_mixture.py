"""Boosting by mixture: the mean of the SSMs' laws is what the newest one's loss judges, and it alone is trained."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specgrove_drafter.tuning.batches import collate
from specgrove_drafter.tuning.depth_head import DepthHead
from specgrove_drafter.tuning.distil import Distillation, Recipe, batch_loss, make_optimizer
from specgrove_drafter.tuning.drawing import draw_positions, drawn_logits
from specgrove_drafter.tuning.objective import ClassMasses, CoarseLaw, class_masses, coarse_kl
from specgrove_drafter.tuning.shards import Document, Role
from specgrove_drafter.tuning.vocabulary import DraftVocabulary
from support.tuning import randomise

MakeDocument = Callable[[int, int], Document]


def a_law(num_rows: int, num_ids: int, vocab_size: int, noise: torch.Generator, *, rest: bool = True) -> CoarseLaw:
    """A float64 law; about a third of the ids are outside the vocabulary: those point at "other", several a row."""
    ids = torch.rand(num_rows, vocab_size - 1, generator=noise).topk(num_ids).indices
    outside = torch.rand(num_rows, num_ids, generator=noise) < 0.3
    masses = torch.rand(num_rows, num_ids + 2, generator=noise, dtype=torch.float64) ** 4
    masses[:, :-2][outside] = 0.0
    if not rest:
        masses[:, -1] = 0.0
    masses = masses / masses.sum(-1, keepdim=True)
    return CoarseLaw(ids.masked_fill(outside, vocab_size - 1), masses[:, :-2], masses[:, -2], masses[:, -1])


def some_logits(num_rows: int, vocab_size: int, noise: torch.Generator) -> Tensor:
    return 2 * torch.randn(num_rows, vocab_size, generator=noise, dtype=torch.float64)


def summed(logits: list[Tensor], law: CoarseLaw) -> ClassMasses | None:
    masses = [class_masses(each, law) for each in logits]
    total = masses[0] if masses else None
    for more in masses[1:]:
        assert total is not None
        total = total + more
    return total


def plain_kl(logits: Tensor, earlier: list[Tensor], law: CoarseLaw) -> Tensor:
    """The definition, class by class, over the whole vocabulary."""
    mean = torch.stack([each.softmax(-1) for each in (logits, *earlier)]).mean(0)
    rows = []
    for row in range(len(mean)):
        is_listed = law.listed[row] > 0
        of_pool = torch.cat([mean[row][law.ids[row][is_listed]], mean[row][-1:]])
        of_target = torch.cat([law.listed[row][is_listed], law.other[row : row + 1]])
        kl = (of_target * (of_target / of_pool).log()).sum()
        if law.rest[row] > 0:
            kl = kl + law.rest[row] * (law.rest[row] / (1 - of_pool.sum())).log()
        rows.append(kl)
    return torch.stack(rows)


@settings(max_examples=40, deadline=None)
@given(
    num_rows=st.integers(1, 7),
    num_ids=st.integers(1, 16),
    num_unlisted=st.integers(2, 50),
    num_earlier=st.integers(0, 3),
    rest=st.booleans(),
    seed=st.integers(0, 10_000),
)
def test_kl_and_gradient_are_those_of_the_mean_law(
    num_rows: int, num_ids: int, num_unlisted: int, num_earlier: int, rest: bool, seed: int
) -> None:
    noise = torch.Generator().manual_seed(seed)
    vocab_size = num_ids + num_unlisted
    law = a_law(num_rows, num_ids, vocab_size, noise, rest=rest)
    earlier = [some_logits(num_rows, vocab_size, noise) for _ in range(num_earlier)]
    own = some_logits(num_rows, vocab_size, noise).requires_grad_()
    free = own.detach().clone().requires_grad_()
    upstream = torch.rand(num_rows, generator=noise, dtype=torch.float64)
    got, wanted = coarse_kl(own, law, summed(earlier, law)), plain_kl(free, earlier, law)
    torch.testing.assert_close(got, wanted, atol=1e-10, rtol=1e-9)
    (got * upstream).sum().backward()
    (wanted * upstream).sum().backward()
    assert own.grad is not None
    torch.testing.assert_close(own.grad, free.grad, atol=1e-10, rtol=1e-9)


def test_nothing_pulls_where_the_mean_is_the_targets_law_already() -> None:
    noise = torch.Generator().manual_seed(3)
    own, earlier = some_logits(5, 40, noise).requires_grad_(), some_logits(5, 40, noise)
    mean = (own.detach().softmax(-1) + earlier.softmax(-1)) / 2
    ids = torch.arange(16).expand(5, 16)
    law = CoarseLaw(ids, mean[:, :16], mean[:, -1], mean[:, 16:-1].sum(-1))
    kl = coarse_kl(own, law, class_masses(earlier, law))
    kl.sum().backward()
    assert own.grad is not None
    torch.testing.assert_close(kl, torch.zeros(5, dtype=torch.float64), atol=1e-12, rtol=0.0)
    assert float(own.grad.abs().max()) < 1e-12
    alone = own.detach().clone().requires_grad_()
    coarse_kl(alone, law).sum().backward()
    assert alone.grad is not None
    assert float(alone.grad.abs().max()) > 1e-2


@pytest.mark.parametrize("num_earlier", [0, 1])
def test_a_rest_that_no_ssm_leaves_room_for_gives_a_finite_pull_towards_it(num_earlier: int) -> None:
    logits = torch.full((1, 30), -40.0)
    logits[0, 0] = 40.0
    ids = torch.full((1, 16), 29)
    ids[0, 0] = 0
    listed = torch.zeros(1, 16)
    listed[0, 0] = 0.6
    law = CoarseLaw(ids, listed, torch.tensor([0.1]), torch.tensor([0.3]))
    own = logits.clone().requires_grad_()
    kl = coarse_kl(own, law, summed([logits] * num_earlier, law))
    kl.sum().backward()
    assert own.grad is not None
    assert bool(torch.isfinite(kl).all() and torch.isfinite(own.grad).all())
    assert float(own.grad[0, 0]) > 0.1
    assert bool((own.grad[0, 1:] <= 0).all())


def test_bfloat16_logits_get_a_bfloat16_gradient_near_the_exact_one() -> None:
    noise = torch.Generator().manual_seed(5)
    law = a_law(9, 16, 100, noise)
    law = CoarseLaw(law.ids, law.listed.float(), law.other.float(), law.rest.float())
    earlier, own = some_logits(9, 100, noise).bfloat16(), some_logits(9, 100, noise).bfloat16().requires_grad_()
    exact = own.detach().float().requires_grad_()
    for logits in (own, exact):
        coarse_kl(logits, law, class_masses(earlier, law)).sum().backward()
    assert own.grad is not None
    assert exact.grad is not None
    assert own.grad.dtype is torch.bfloat16
    torch.testing.assert_close(own.grad.float(), exact.grad, atol=2e-3, rtol=1e-2)


def test_a_twin_changes_nothing_but_another_ssm_does(
    ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument
) -> None:
    randomise(ssm.lm_head)
    to_draft = vocabulary.to_draft()
    batch = collate([make_document(1, 30), make_document(2, 11)], to_draft)
    twin, other = copy.deepcopy(ssm), copy.deepcopy(ssm)
    randomise(other.lm_head)

    def loss(*earlier: Any) -> float:
        chance = torch.Generator().manual_seed(1)
        return float(batch_loss(ssm, batch, to_draft, 0.1, chance, earlier).detach())

    assert loss(twin) == pytest.approx(loss(), rel=1e-4)
    assert abs(loss(other) - loss()) > 0.01
    assert loss(twin, other) == pytest.approx(loss(other, twin), rel=1e-4)


def test_earlier_ssms_stay_as_they_are(ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument) -> None:
    randomise(ssm.lm_head)
    earlier = copy.deepcopy(ssm)
    randomise(earlier.lm_head)
    before = {name: weight.clone() for name, weight in earlier.state_dict().items()}
    recipe = Recipe(max_steps=40, max_seconds=None, learning_rate=3e-3, batch_tokens=200, seed=4)
    documents = [make_document(number, 24) for number in range(4)]
    run = Distillation(ssm, make_optimizer(ssm, recipe), recipe, documents, vocabulary, 0.1, earlier=(earlier,))
    alone = copy.deepcopy(ssm)
    own_loss = Distillation(alone, make_optimizer(alone, recipe), recipe, documents, vocabulary, 0.1).advance()
    losses = []
    while not run.is_done:
        losses.append(run.advance())
    assert abs(losses[0] - own_loss) > 0.01, "the loss is that of the mean"
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4]), "the mean of the laws comes nearer to the target's"
    assert all(weight.grad is None for weight in earlier.parameters())
    for name, weight in earlier.state_dict().items():
        assert torch.equal(weight, before[name]), name
    assert not torch.equal(ssm.lm_head.token_map, earlier.lm_head.token_map)


def test_an_ssm_without_maps_for_a_depth_reads_its_states_alone(
    ssm: Any, vocabulary: DraftVocabulary, make_document: MakeDocument
) -> None:
    randomise(ssm.lm_head)
    shallow = copy.deepcopy(ssm)
    full: DepthHead = ssm.lm_head
    shallow.lm_head = DepthHead(
        full.rows, full.token_map, full.other, full.state_maps[:1].detach(), full.feature_maps[:1].detach()
    )
    document = make_document(1, 40)
    document.roles[:5] = Role.UNSEEN
    batch = collate([document], vocabulary.to_draft())
    draw = draw_positions(batch, full.num_depths, torch.Generator().manual_seed(2))
    counts = [len(places) for places in draw.by_depth]
    assert len(counts) == 3
    assert min(counts) > 0
    assert int(draw.places.min()) >= 5
    with torch.no_grad():
        by_depth = [logits.split(counts) for logits in (drawn_logits(s, batch, draw) for s in (ssm, shallow))]
        states = ssm.model(input_ids=batch.tokens, use_cache=False).last_hidden_state[0]
        alone = full(states[draw.by_depth[2]])
    for depth in (0, 1):
        torch.testing.assert_close(by_depth[0][depth], by_depth[1][depth])
    torch.testing.assert_close(by_depth[1][2], alone)
    assert float((by_depth[0][2] - alone).abs().max()) > 0.1
