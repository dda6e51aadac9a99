"""The HTTP endpoints. Both generating ones go the same way: read, build, generate, answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specgrove.errors import PeerUnavailable
from specgrove.telemetry import current_log_context, log_context
from specgrove_gateway.admission import Admission
from specgrove_gateway.choices import ChoiceGenerator
from specgrove_gateway.generation import Finished, GenerationRequest, ScoredToken
from specgrove_gateway.metrics import GatewayMetrics
from specgrove_gateway.openai_http.answers import AnswerFormat, ChatFormat, Choice, CompletionFormat, Json, Totals
from specgrove_gateway.openai_http.body import json_object, read_body, require_json
from specgrove_gateway.openai_http.errors import status_name
from specgrove_gateway.openai_http.headers import figure_headers, request_headers
from specgrove_gateway.openai_http.primed_events import PrimedEvents
from specgrove_gateway.openai_http.requests import HttpRequest, parse_chat, parse_completion
from specgrove_gateway.openai_http.sse import Answering, ClientGone, EventStream
from specgrove_gateway.request_builder import RequestBuilder

_Parse = Callable[[dict[str, Any], str | None], HttpRequest]
_MakeFormat = Callable[[GenerationRequest, str, bool], AnswerFormat]
_CLIENT_CLOSED_REQUEST = 499  # nginx's number; nobody reads it
_THREAD_ABOVE_BYTES = 16 * 1024  # parsing more would be felt by other streams


class GenerationEndpoints:
    """POST /v1/chat/completions and /v1/completions."""

    def __init__(
        self,
        builder: RequestBuilder,
        choices: ChoiceGenerator,
        admission: Admission,
        metrics: GatewayMetrics,
        *,
        max_body_bytes: int,
        heartbeat_s: float,
    ) -> None:
        self._builder = builder
        self._choices = choices
        self._admission = admission
        self._metrics = metrics
        self._max_body_bytes = max_body_bytes
        self._heartbeat_s = heartbeat_s

    async def chat_completions(self, request: Request) -> Any:
        return await self._answer(request, parse_chat, ChatFormat)

    async def completions(self, request: Request) -> Any:
        return await self._answer(request, parse_completion, CompletionFormat)

    async def _answer(self, request: Request, parse: _Parse, make_format: _MakeFormat) -> Any:
        require_json(request)
        with self._metrics.count_errors(status_name):
            # Read before the request counts as arriving: a client that sends slowly must not hold a place.
            body = await read_body(request, self._max_body_bytes)
            with self._admission.arriving():
                asked = await _parsed(body, parse, request.headers.get("x-session-id"))
                generation = await self._builder.build(asked.client)
            answer = make_format(generation, self._builder.served_model().model_id, asked.has_usage_chunk)
            headers = request_headers(generation)
            with log_context(request_id=generation.request_id, session_id=generation.session_id):
                if asked.is_stream:
                    return await self._streamed(request, generation, asked.has_usage_chunk, answer, headers)
                try:
                    whole = await Answering(request.receive).unless_gone(self._whole(generation, answer))
                except ClientGone:
                    return Response(status_code=_CLIENT_CLOSED_REQUEST)
                return JSONResponse(whole, headers=headers | figure_headers(whole))

    async def _whole(self, generation: GenerationRequest, answer: AnswerFormat) -> Json:
        count = generation.num_choices
        pieces: list[list[str]] = [[] for _ in range(count)]
        logprobs: list[list[ScoredToken]] = [[] for _ in range(count)]
        finished: dict[int, Finished] = {}
        async with aclosing(self._choices.generate(generation)) as events:
            async for choice in events:
                pieces[choice.index].append(choice.event.text)
                logprobs[choice.index] += choice.event.logprobs
                if isinstance(choice.event, Finished):
                    finished[choice.index] = choice.event
        if len(finished) < count:
            raise PeerUnavailable("the generation ended without a finish reason; try again")
        endings = [finished[index] for index in range(count)]
        choices = [
            Choice("".join(texts), scored, ending.finish_reason)
            for texts, scored, ending in zip(pieces, logprobs, endings, strict=True)
        ]
        return answer.whole(choices, Totals.of(endings))

    async def _streamed(
        self,
        request: Request,
        generation: GenerationRequest,
        has_usage_chunk: bool,
        answer: AnswerFormat,
        headers: dict[str, str],
    ) -> Any:
        """The stream, started once the first token is there: what fails before that still gets its own status.

        A first token that takes longer than a heartbeat is waited for inside the stream: the client hears of us.
        """
        events = PrimedEvents(self._choices.generate(generation))
        try:
            await Answering(request.receive).unless_gone(events.prime(self._heartbeat_s))
        except ClientGone:
            await events.aclose()
            return Response(status_code=_CLIENT_CLOSED_REQUEST)
        except BaseException:
            await events.aclose()
            raise
        chunks = _chunks(events, answer, generation.num_choices, has_usage_chunk)
        return EventStream(self._counting_errors(chunks), headers, self._heartbeat_s, current_log_context())

    async def _counting_errors(self, chunks: AsyncGenerator[Json, None]) -> AsyncGenerator[Json, None]:
        with self._metrics.count_errors(status_name):
            async with aclosing(chunks):
                async for chunk in chunks:
                    yield chunk


async def _parsed(body: bytes, parse: _Parse, header_session_id: str | None) -> HttpRequest:
    def parsed() -> HttpRequest:
        return parse(json_object(body), header_session_id)

    return await asyncio.to_thread(parsed) if len(body) > _THREAD_ABOVE_BYTES else parsed()


async def _chunks(
    events: PrimedEvents, answer: AnswerFormat, num_choices: int, has_usage: bool
) -> AsyncGenerator[Json, None]:
    finished: dict[int, Finished] = {}
    opened = {0}  # the first choice opens before there is anything to say
    async with aclosing(events):
        if (opening := answer.opening(0)) is not None:
            yield opening
        async for choice in events:
            index, event = choice.index, choice.event
            if index not in opened and (opening := answer.opening(index)) is not None:
                yield opening
            opened.add(index)
            if event.text or event.logprobs:
                yield answer.delta(index, event.text, event.logprobs)
            if isinstance(event, Finished):
                finished[index] = event
                totals = Totals.of(list(finished.values())) if len(finished) == num_choices else None
                yield answer.ending(index, event.finish_reason, totals)
                if totals is not None and has_usage:
                    yield answer.usage(totals)
