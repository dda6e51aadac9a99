"""The draft mailbox under a hostile network: whatever arrives, the committed tokens are those of no drafts at all.

The engine's walk is simulated: a target that is a pure function of the committed tokens, and steps that take whatever
tree the mailbox holds. Messages are honest trees that the network then reorders, repeats, drops, delays, truncates and
sends under other names.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from specgrove.base_hash import EMPTY_HASH, extend_hash
from specgrove.draft import Draft
from specgrove.sampling.verification import verify_tree
from specgrove.tree import TokenTree, TreeBuilder
from specgrove_verifier.mailbox import NO_DRAFT, Base, DraftBudget, DraftMailbox, DraftOutcome

VOCAB_SIZE = 5
PROMPT = (1, 2, 3)
DRAFTERS = (1, 2, 3)

drafters = st.sampled_from(DRAFTERS)
seeds = st.integers(0, 2**32 - 1)


def target_token(tokens: tuple[int, ...]) -> int:
    """The target: any pure function of everything before."""
    return extend_hash(EMPTY_HASH, tokens) // 1009 % VOCAB_SIZE


def plain_decoding(length: int) -> tuple[int, ...]:
    tokens = PROMPT
    while len(tokens) < length:
        tokens = (*tokens, target_token(tokens))
    return tokens[:length]


class MailboxMachine(RuleBasedStateMachine):
    @initialize()
    def start(self) -> None:
        self.mailbox = DraftMailbox(VOCAB_SIZE)
        self.tokens = PROMPT
        self.network: list[tuple[int, Draft]] = []
        self.num_accepted = 0
        self.asked: frozenset[int] = frozenset()
        self._expect(DraftBudget(6, 4), frozenset(DRAFTERS))

    def _expect(self, budget: DraftBudget, asked: frozenset[int]) -> None:
        self.budget = budget
        self.asked = asked if budget.max_nodes else frozenset()
        base = Base(len(self.tokens), extend_hash(EMPTY_HASH, self.tokens), self.tokens[-1])
        self.mailbox.expect(base, budget, asked)

    @rule(drafter=drafters, seed=seeds, is_knowing=st.booleans(), num_behind=st.integers(0, 3))
    def draft(self, drafter: int, seed: int, is_knowing: bool, num_behind: int) -> None:
        """A tree under the committed tokens, or under what they were a while ago, goes out on the network."""
        random = Random(seed)
        base = self.tokens[: max(len(self.tokens) - num_behind, len(PROMPT))]
        builder = TreeBuilder(base[-1])
        for _ in range(random.randrange(8)):
            parent = random.randrange(builder.num_nodes)
            path = TokenTree(tuple(builder.token_ids), tuple(builder.parents)).token_path(parent)
            wanted = target_token((*base, *path)) if is_knowing else random.randrange(VOCAB_SIZE)
            builder.add(parent, wanted, 1 << drafter)
        tree = builder.build()
        base_hash = extend_hash(EMPTY_HASH, base)
        draft = Draft(1, len(base), base_hash, tree.token_ids[1:], tree.parents[1:], tree.members[1:])
        self.network.append((drafter, draft))

    @rule(seed=seeds, keep=st.booleans())
    def deliver(self, seed: int, keep: bool) -> None:
        """Some message, any: reordered; and kept on the network it comes again, much later perhaps."""
        if self.network:
            place = Random(seed).randrange(len(self.network))
            self._offer(*(self.network[place] if keep else self.network.pop(place)))

    @rule()
    def drop(self) -> None:
        self.network.clear()

    @rule(seed=seeds)
    def deliver_damaged(self, seed: int) -> None:
        if self.network:
            random = Random(seed)
            drafter, draft = random.choice(self.network)
            self._offer(drafter, _damaged(draft, random))

    @rule(seed=seeds)
    def deliver_under_another_name(self, seed: int) -> None:
        if self.network:
            random = Random(seed)
            _, draft = random.choice(self.network)
            self._offer(random.choice([*DRAFTERS, 0, 99]), draft)

    @rule(drafter=st.sampled_from([*DRAFTERS, 99]), base_len=st.integers(0, 60))
    def decline(self, drafter: int, base_len: int) -> None:
        self.mailbox.decline(drafter, base_len)

    @rule(drafter=st.sampled_from([*DRAFTERS, 99]))
    def lose_a_drafter(self, drafter: int) -> None:
        self.mailbox.forget(drafter)
        self.asked -= {drafter}

    @rule(drafter=drafters)
    def gain_a_drafter(self, drafter: int) -> None:
        self.mailbox.ask_also(frozenset({drafter}))
        if self.budget.max_nodes:
            self.asked |= {drafter}

    @rule(max_nodes=st.integers(0, 6), max_depth=st.integers(1, 4), asked=st.frozensets(drafters))
    def step(self, max_nodes: int, max_depth: int, asked: frozenset[int]) -> None:
        tree = self.mailbox.take() or TokenTree.root_only(self.tokens[-1])
        assert tree.token_ids[0] == self.tokens[-1]
        assert tree.num_draft_nodes <= self.budget.max_nodes
        assert tree.max_depth <= self.budget.max_depth
        assert all(0 <= token_id < VOCAB_SIZE for token_id in tree.token_ids)
        choices = [target_token((*self.tokens, *tree.token_path(node))) for node in range(tree.num_nodes)]
        verdict = verify_tree(tree, choices)
        self.num_accepted += len(verdict.accepted_nodes)
        self.tokens += verdict.committed_token_ids(tree)
        assert self.mailbox.take() is None
        self._expect(DraftBudget(max_nodes, max_depth) if max_nodes else NO_DRAFT, asked)

    def _offer(self, drafter: int, draft: Draft) -> None:
        outcome = self.mailbox.offer(drafter, draft)
        assert isinstance(outcome, DraftOutcome)
        if outcome.is_kept:
            assert drafter in self.asked
            assert draft.base_len == len(self.tokens)
            assert draft.base_hash == extend_hash(EMPTY_HASH, self.tokens)
        elif drafter in self.asked and draft.base_len < len(self.tokens):
            assert outcome is DraftOutcome.LATE

    @invariant()
    def the_tokens_are_those_of_plain_decoding(self) -> None:
        if hasattr(self, "tokens"):
            assert self.tokens == plain_decoding(len(self.tokens))

    @invariant()
    def only_those_asked_are_missing(self) -> None:
        if hasattr(self, "mailbox"):
            assert self.mailbox.missing() <= self.asked


def _damaged(draft: Draft, random: Random) -> Draft:
    size = len(draft.token_ids)
    cut = random.randrange(size + 1)
    return random.choice(
        [
            replace(draft, token_ids=draft.token_ids[:cut], parents=draft.parents[:cut], members=draft.members[:cut]),
            replace(draft, token_ids=draft.token_ids[:cut]),
            replace(draft, parents=draft.parents[:cut]),
            replace(draft, members=draft.members[:cut]),
            replace(draft, token_ids=tuple(2**32 - 1 for _ in draft.token_ids)),
            replace(draft, token_ids=tuple(0 for _ in draft.token_ids), parents=tuple(0 for _ in draft.parents)),
            replace(draft, parents=tuple(reversed(draft.parents))),
            replace(draft, parents=tuple(parent + 1 for parent in draft.parents)),
            replace(draft, base_hash=draft.base_hash ^ (1 << random.randrange(61))),
            replace(draft, base_len=random.choice([0, draft.base_len + 1, draft.base_len - 1, 2**32 - 1])),
            replace(draft, token_ids=draft.token_ids * 9, parents=draft.parents * 9, members=draft.members * 9),
        ]
    )


TestMailbox = MailboxMachine.TestCase
TestMailbox.settings = settings(settings.get_profile("ci"), max_examples=80, stateful_step_count=40)
