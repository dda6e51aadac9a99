"""The headers of an answer: who it is, what its seed is, and what speculation did for it."""

from __future__ import annotations

from specgrove_gateway.generation import GenerationRequest
from specgrove_gateway.openai_http.answers import Json

_PREFIX = "x-specgrove-"
# Known before the first byte, so on every answer.
REQUEST_HEADERS = {
    "x-request-id": "The request's id, as the services' logs have it.",
    "x-session-id": "The session; send it again and the next turn finds its cache.",
    "x-specgrove-seed": "The seed, drawn if none was sent; the same seed gives the same tokens.",
    "x-specgrove-speculation": "`on`, or `off` where the request disabled it and no draft work is done.",
}
# Known once all is said, so on unstreamed answers; a stream has them in its last chunk.
FIGURE_HEADERS = {
    "x-specgrove-mean-acceptance-length": "Tokens committed a step, the target's own included.",
    "x-specgrove-draft-acceptance-rate": "Share of the verified draft tokens that were kept.",
    "x-specgrove-num-spec-steps": "Steps of the target that committed tokens.",
    "x-specgrove-num-draft-tokens": "Draft tokens that were verified.",
    "x-specgrove-num-accepted-draft-tokens": "Draft tokens that were kept.",
}


def request_headers(request: GenerationRequest) -> dict[str, str]:
    """The headers of every answer to `request`."""
    return {
        "x-request-id": request.request_id,
        "x-session-id": request.session_id,
        "x-specgrove-seed": str(request.sampling.seed),
        "x-specgrove-speculation": "on" if request.speculation.is_enabled else "off",
    }


def figure_headers(answer: Json) -> dict[str, str]:
    """The speculation's figures of a whole answer, those of its `metrics.speculative_decoding`."""
    figures: Json = answer["metrics"]["speculative_decoding"]
    return {name: f"{figures[name.removeprefix(_PREFIX).replace('-', '_')]:.6g}" for name in FIGURE_HEADERS}
