"""Growing trees with a fixed law: shapes, budgets, stop tokens, and one forward for each level."""

from __future__ import annotations

from collections.abc import Sequence

from specgrove.tree import ExpansionConfig, TokenTree
from specgrove_drafter.jobs import Budget, DraftJob, SessionRef
from specgrove_drafter.members.draft_model import Expanded, NodeRow
from specgrove_drafter.members.ssm import SsmMember
from specgrove_drafter.trees.growth import BestFirst, BestFirstPolicy, ExpansionPolicy, GrowthPolicy, policy_of
from specgrove_drafter.trees.proposal import select_tree
from support.drafter_fakes import TableModel, ask, chain_proposal, make_job

# Token 3 is followed by 4, 5 or 9; 4 mostly by 6; 5 by 7 or 8; 6 and 7 by 4 or 5 again.
LAWS = {
    3: {4: 0.6, 5: 0.3, 9: 0.1},
    4: {6: 0.9, 7: 0.05},
    5: {7: 0.5, 8: 0.4},
    6: {4: 0.6, 5: 0.3},
    7: {4: 0.6, 5: 0.3},
}


def grow(model: TableModel, policy: GrowthPolicy, job: DraftJob) -> TokenTree:
    [draft] = ask(SsmMember("ssm", model, policy), [job])
    return select_tree(job.root_token_id, [(1, draft.proposal)], job.budget)


def test_best_first_keeps_the_likeliest_paths() -> None:
    tree = grow(TableModel(LAWS), BestFirstPolicy(BestFirst()), make_job(budget=Budget(4, 3)))
    # 4: 0.6, 4-6: 0.54, 4-6-4: 0.324, 5: 0.3
    assert tree.paths() == {(), (4,), (4, 6), (4, 6, 4), (5,)}


def test_nodes_come_in_order_of_falling_estimate() -> None:
    tree = grow(TableModel(LAWS), BestFirstPolicy(BestFirst()), make_job(budget=Budget(4, 3)))
    assert tree.token_ids == (3, 4, 6, 4, 5)


def test_a_level_costs_one_forward_over_all_sessions() -> None:
    model = TableModel(LAWS)
    member = SsmMember("ssm", model, BestFirstPolicy(BestFirst(min_path_prob=0.0)))
    ask(member, [make_job(session=SessionRef(1, key), budget=Budget(8, 3)) for key in range(3)])
    assert len(model.rounds) == 2  # depth 3: the root's forward and two more
    assert {node.job.session.session_key for node in model.rounds[0]} == {0, 1, 2}


def test_a_base_that_grows_meanwhile_costs_no_further_forward() -> None:
    laws = {3: {4: 0.9}, 4: {5: 0.9}, 5: {6: 0.9}, 6: {7: 0.9}}
    job, other = make_job(session=SessionRef(1, 1)), make_job(session=SessionRef(1, 2))

    class CommitComes(TableModel):
        def extend(self, nodes: Sequence[NodeRow], num_children: int, enough: Sequence[int] = ()) -> list[Expanded]:
            job.token_ids.append(4)  # type: ignore[attr-defined]
            return TableModel.extend(self, nodes, num_children, enough)

    model = CommitComes(laws)
    ask(SsmMember("ssm", model, BestFirstPolicy(BestFirst())), [job, other])
    assert {node.job.session for node in model.rounds[0]} == {job.session, other.session}
    assert all(node.job is other for nodes in model.rounds[1:] for node in nodes)
    assert len(model.rounds) > 1


def test_drafting_stops_when_the_best_path_is_too_unlikely() -> None:
    model = TableModel(LAWS)
    grow(model, BestFirstPolicy(BestFirst(min_path_prob=0.7)), make_job(budget=Budget(8, 6)))
    assert model.rounds == []


def test_a_node_outside_the_best_is_never_expanded() -> None:
    model = TableModel(LAWS)
    grow(model, BestFirstPolicy(BestFirst(min_path_prob=0.0)), make_job(budget=Budget(2, 4)))
    assert [[node.token_id for node in nodes] for nodes in model.rounds] == [[4, 5], [6]]


def test_nothing_is_drafted_below_a_stop_token() -> None:
    model = TableModel(LAWS)
    tree = grow(model, BestFirstPolicy(BestFirst()), make_job(stop_token_ids=frozenset({4}), budget=Budget(8, 4)))
    assert (4,) in tree.paths()
    assert not any(path[:-1].count(4) for path in tree.paths())


def test_depth_stays_within_budget_and_model_context() -> None:
    settings = BestFirst(min_path_prob=0.0)
    assert grow(TableModel(LAWS), BestFirstPolicy(settings), make_job(budget=Budget(50, 2))).max_depth == 2
    assert grow(TableModel(LAWS, depth_limit=1), BestFirstPolicy(settings), make_job()).max_depth == 1
    assert grow(TableModel(LAWS, depth_limit=0), BestFirstPolicy(settings), make_job()).max_depth == 0


def test_expansion_config_gives_every_node_its_children() -> None:
    tree = grow(TableModel(LAWS), ExpansionPolicy(ExpansionConfig((2, 1, 2))), make_job(budget=Budget(50, 8)))
    assert tree.paths() == {
        (),
        (4,),
        (5,),
        (4, 6),
        (5, 7),
        (4, 6, 4),
        (4, 6, 5),
        (5, 7, 4),
        (5, 7, 5),
    }


def test_expansion_config_is_cut_by_the_budget_to_its_best_nodes() -> None:
    tree = grow(TableModel(LAWS), ExpansionPolicy(ExpansionConfig((2, 1, 2))), make_job(budget=Budget(3, 2)))
    assert tree.paths() == {(), (4,), (4, 6), (5,)}


def test_a_session_that_is_still_read_proposes_nothing_and_says_so() -> None:
    behind, ready = SessionRef(1, 1), SessionRef(1, 2)
    member = SsmMember("ssm", TableModel(LAWS, unread={behind}), BestFirstPolicy(BestFirst()))
    first, second = ask(member, [make_job(session=behind), make_job(session=ready)])
    assert first.is_behind
    assert len(first.proposal) == 0
    assert not second.is_behind
    assert len(second.proposal) > 0


def test_catching_up_drafts_nothing() -> None:
    model = TableModel(LAWS)
    [draft] = ask(SsmMember("ssm", model, BestFirstPolicy(BestFirst())), [make_job().without_budget()])
    assert len(draft.proposal) == 0
    assert model.rounds == []


def test_the_policy_follows_the_setting() -> None:
    assert isinstance(policy_of("", BestFirst()), BestFirstPolicy)
    assert policy_of("1,1,3,1", BestFirst()) == ExpansionPolicy(ExpansionConfig((1, 1, 3, 1)))


def test_rivals_that_fill_the_budget_with_likely_nodes_save_every_forward() -> None:
    model = TableModel(LAWS)
    job = make_job(budget=Budget(3, 4))
    [draft] = ask(SsmMember("ssm", model, BestFirstPolicy(BestFirst())), [job], chain_proposal([(4, 6, 4)], 0.9))
    assert len(draft.proposal) == 0
    assert model.starts == 0


def test_nodes_that_rivals_beat_are_not_expanded() -> None:
    model = TableModel(LAWS)
    rivals = chain_proposal([(1, 2, 3)], 0.8)  # 0.8, 0.64, 0.51: only token 4 (0.6) beats the last of them
    ask(SsmMember("ssm", model, BestFirstPolicy(BestFirst(min_path_prob=0.0))), [make_job(budget=Budget(4, 4))], rivals)
    assert [[node.token_id for node in nodes] for nodes in model.rounds] == [[4], [6]]


def test_a_path_that_rivals_propose_too_takes_one_place() -> None:
    alone, shared = TableModel(LAWS), TableModel(LAWS)
    policy = BestFirstPolicy(BestFirst(min_path_prob=0.0))
    budget = Budget(4, 3)
    ask(SsmMember("ssm", alone, policy), [make_job(budget=budget)])
    ask(SsmMember("ssm", shared, policy), [make_job(budget=budget)], chain_proposal([(4, 6)], 0.5))
    assert [[node.token_id for node in nodes] for nodes in shared.rounds] == [
        [node.token_id for node in nodes] for nodes in alone.rounds
    ]
