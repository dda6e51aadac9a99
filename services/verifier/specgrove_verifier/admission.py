"""From a request as it came to a generation the engine can run, or an error that names the field."""

from __future__ import annotations

import itertools
import time
from collections import OrderedDict
from dataclasses import dataclass

from specgrove.errors import ContextTooLong, InvalidInput, ModelNotFound, StaleEpoch
from specgrove.outcome import FinishReason
from specgrove.sampling.noise import NoiseRows, noise_stream
from specgrove.sampling.rules import Rule, needs_child_laws
from specgrove.text import Tokenizer
from specgrove_verifier.generation import Generation, GenerationRequest, Listener, StepOutput
from specgrove_verifier.mailbox import DraftMailbox
from specgrove_verifier.stopping import StopChecker

_MAX_EPOCHS_KEPT = 100_000


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What requests are checked against."""

    model_name: str
    vocab_size: int
    max_context_len: int  # of the model, or of the KV cache if that is smaller
    eos_token_ids: tuple[int, ...]
    tokenizer: Tokenizer | None
    device: str
    rule: Rule = Rule.COUPLED  # of requests that name none


class Epochs:
    """The highest epoch seen of each session (the last 100,000 sessions): older owners are refused."""

    def __init__(self) -> None:
        self._highest: OrderedDict[str, int] = OrderedDict()

    def admit(self, session_id: str, epoch: int) -> None:
        """Raise `StaleEpoch` when a newer owner of the session was here."""
        highest = self._highest.get(session_id, 0)
        if epoch < highest:
            raise StaleEpoch(f"session {session_id}: epoch {epoch} is older than {highest}; a newer owner has taken it")
        self._highest[session_id] = epoch
        self._highest.move_to_end(session_id)
        if len(self._highest) > _MAX_EPOCHS_KEPT:
            self._highest.popitem(last=False)


class Admission:
    """Checks requests and makes generations."""

    def __init__(self, facts: TargetFacts) -> None:
        self._facts = facts
        self._keys = itertools.count(1)

    def check(self, request: GenerationRequest, model: str) -> None:
        """Raise `InvalidInput`, `ContextTooLong` or `ModelNotFound`; nothing has been done then."""
        facts = self._facts
        if model and model != facts.model_name:
            raise ModelNotFound(f"model {model!r} is not served here; ask for {facts.model_name!r}")
        if not request.prompt_token_ids:
            raise InvalidInput("the prompt is empty; send at least one token", field="prompt_token_ids")
        for name, token_ids in (
            ("prompt_token_ids", request.prompt_token_ids),
            ("committed_token_ids", request.committed_token_ids),
            ("stop_token_ids", request.stop.stop_token_ids),
            ("logit_bias", [token_id for token_id, _ in request.sampling.logit_bias]),
        ):
            worst = max(token_ids, default=0)
            if worst >= facts.vocab_size:
                raise InvalidInput(f"token id {worst} is outside the vocabulary of {facts.vocab_size}", field=name)
        length = len(request.prompt_token_ids)
        if length >= facts.max_context_len:
            raise ContextTooLong(
                f"the prompt has {length} tokens; the context holds {facts.max_context_len} and one must be left for "
                "the answer",
                field="prompt_token_ids",
            )
        if request.stop.stop_strings and facts.tokenizer is None:
            raise InvalidInput("this model has no tokenizer.json, so stop strings cannot be honoured", field="stop")

    def make(self, request: GenerationRequest, listener: Listener) -> tuple[Generation, StepOutput | None]:
        """A generation, and its last output if the tokens of an earlier owner have ended it already."""
        facts = self._facts
        rule = request.speculation.rule or facts.rule
        checker = StopChecker(
            request.stop,
            eos_token_ids=facts.eos_token_ids,
            room=facts.max_context_len - len(request.prompt_token_ids),
            tokenizer=facts.tokenizer,
        )
        generation = Generation(
            next(self._keys),
            request,
            rule=rule,
            checker=checker,
            noise=NoiseRows(request.sampling.seed, facts.vocab_size, facts.device, noise_stream(rule)),
            mailbox=DraftMailbox(facts.vocab_size, needs_laws=needs_child_laws(rule, request.sampling.temperature)),
            listener=listener,
            arrived_s=time.monotonic(),
        )
        reason: FinishReason | None = None
        for token_id in request.committed_token_ids:
            reason = checker.push(token_id)
            if reason is not None:
                return generation, StepOutput((), reason, checker.stop_string, generation.stats)
        return generation, None
