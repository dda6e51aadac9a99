"""One generation as the gateway sees it: what a client asked, what a verifier is asked, what comes back.

HTTP body ─┐                                                          ┌─ SSE / JSON
           ├─▶ ClientRequest ─▶ GenerationRequest ─▶ Generator ─▶ events
gRPC msg  ─┘    (as spelled)     (checked, ids)                       └─ gRPC messages
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

from specgrove.outcome import FinishReason, SpeculationStats, TokenLogprobs
from specgrove.sampling.params import MAX_TOP_LOGPROBS, SamplingParams, SpeculationOptions, StopConditions
from specgrove.sampling.seeds import choice_seed
from specgrove.text import ChatMessage, TokenText


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """A prompt to be continued as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation; the model's chat template turns it into a prompt."""

    messages: tuple[ChatMessage, ...]


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt that the client tokenised itself."""

    token_ids: tuple[int, ...]


Prompt = TextPrompt | ChatPrompt | TokenPrompt


@dataclass(frozen=True, slots=True)
class ClientRequest:
    """What a client asked, in either face's spelling; nothing is checked yet. None means the default."""

    prompt: Prompt
    prompt_field: str  # how the face spells the field, for errors
    model: str | None = None
    session_id: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    max_tokens_field: str = "max_tokens"
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)
    priority: int = 0  # the lower goes first
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()  # (token id, bias)
    top_logprobs: int | None = None  # None = no logprobs
    top_logprobs_field: str = "top_logprobs"
    max_top_logprobs: int = MAX_TOP_LOGPROBS
    echo: bool = False
    n: int | None = None


@dataclass(slots=True)
class Company:
    """Where the choices of one request run: the others follow the first to the verifier that has read the prompt."""

    verifier_id: str | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A checked request: every verifier of the pool can run it as it is."""

    request_id: str
    session_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    stop: StopConditions
    speculation: SpeculationOptions
    priority: int = 0
    is_new_session: bool = False  # the client named none: nobody can hold it yet
    top_logprobs: int | None = None  # None = no logprobs
    echo_text: str | None = None  # the prompt as the answer begins with it; None = it does not
    num_choices: int = 1
    choice_index: int = 0
    company: Company | None = None  # None = one choice, which goes wherever it likes

    @property
    def wants_prompt_logprobs(self) -> bool:
        """The first choice asks for all of them."""
        return self.echo_text is not None and self.top_logprobs is not None and self.choice_index == 0

    def choice(self, index: int) -> GenerationRequest:
        """The generation of one choice. The first keeps ids and seed, so that it says what it says alone."""
        if index == 0:
            return self
        return replace(
            self,
            request_id=f"{self.request_id}-{index}",
            session_id=uuid.uuid4().hex,  # a session runs one generation at a time
            sampling=replace(self.sampling, seed=choice_seed(self.sampling.seed, index)),
            is_new_session=True,
            choice_index=index,
        )


@dataclass(frozen=True, slots=True)
class TokenStep:
    """What one step of a verifier committed. Only the last step of a generation has a finish reason."""

    token_ids: tuple[int, ...]
    epoch: int = 0
    finish_reason: FinishReason | None = None
    stop_string: str = ""
    stats: SpeculationStats | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # on the first step: of the prompt from its second token


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens read and written; stop tokens count although they have no text."""

    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A token with what the target thought of it."""

    token: TokenText
    text_offset: int  # in characters: where its text begins in the whole, before a stop string cut it
    logprob: float | None  # None for the first token of a prompt
    top: tuple[tuple[TokenText, float], ...] = ()  # the likeliest, in order


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt, before everything else, for clients that want it back."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ScoredToken, ...] = ()  # of `token_ids`, where they were asked for


@dataclass(frozen=True, slots=True)
class Delta:
    """Something new: committed ids, and the text that became final with them (may be empty)."""

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[ScoredToken, ...] = ()  # of `token_ids`, where they were asked for: text may come later


@dataclass(frozen=True, slots=True)
class Finished:
    """The end, exactly once and last; carries what was still held back."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    stats: SpeculationStats
    logprobs: tuple[ScoredToken, ...] = ()


GenerationEvent = Echo | Delta | Finished


@dataclass(frozen=True, slots=True)
class ChoiceEvent:
    """An event of one of a request's choices."""

    index: int
    event: GenerationEvent
