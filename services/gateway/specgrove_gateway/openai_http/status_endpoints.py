"""Endpoints that tell about the gateway itself."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from specgrove.errors import PeerUnavailable
from specgrove.telemetry import CollectorRegistry, render_metrics
from specgrove.version import VERSION
from specgrove_gateway.openai_http.answers import Json
from specgrove_gateway.openai_http.errors import error_response
from specgrove_gateway.request_builder import RequestBuilder


class StatusEndpoints:
    """Models, liveness, readiness, version and metrics."""

    def __init__(
        self, builder: RequestBuilder, registry: CollectorRegistry, is_ready: Callable[[], bool], started_at_s: float
    ) -> None:
        self._builder = builder
        self._registry = registry
        self._is_ready = is_ready
        self._started_at_s = started_at_s

    async def models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._builder.check_model(request.path_params["model_id"])
        return JSONResponse(self._model())

    async def health(self, request: Request) -> Response:
        """Alive: the process answers."""
        return JSONResponse({"status": "ok"})

    async def ready(self, request: Request) -> Response:
        """Ready: at least one verifier is known to be healthy."""
        if self._is_ready():
            return JSONResponse({"status": "ready"})
        return error_response(PeerUnavailable("no verifier is healthy yet"))

    async def version(self, request: Request) -> Response:
        return JSONResponse({"version": VERSION})

    async def metrics(self, request: Request) -> Response:
        page = render_metrics(self._registry, request.headers.get("accept", ""))
        return Response(page.body, headers={"content-type": page.content_type})

    def _model(self) -> Json:
        served = self._builder.served_model()
        model: Json = {
            "id": served.model_id,
            "object": "model",
            "created": int(self._started_at_s),
            "owned_by": "specgrove",
        }
        if served.limits is not None:
            model["max_model_len"] = served.limits.max_context_len  # vLLM's name for it
            model["vocab_size"] = served.limits.vocab_size
        return model
