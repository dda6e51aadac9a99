"""The demo on a running cluster: one prompt answered twice, its figures, and how to go on by hand."""

from __future__ import annotations

import json
from collections.abc import Callable

from specgrove_local import grpc_client
from specgrove_local.cluster import LocalCluster
from specgrove_local.grpc_client import Answer
from specgrove_local.report import comparison_table, first_difference, plain_table

Write = Callable[[str], None]  # writes text as it is, without a newline, and flushes

_ANSWER_TIMEOUT_S = 600.0
_WARM_UP_PROMPT = "Say hello."
_WARM_UP_TOKENS = 8


def ask(cluster: LocalCluster, prompt: str, *, max_tokens: int, speculation: bool, write: Write) -> Answer:
    """One greedy answer, written as it streams."""
    answer = Answer()
    pieces = grpc_client.stream_chat(
        cluster.gateway_grpc_address,
        prompt,
        max_tokens=max_tokens,
        speculation=speculation,
        answer=answer,
        timeout_s=_ANSWER_TIMEOUT_S,
    )
    for piece in pieces:
        write(piece)
    return answer


def run_demo(cluster: LocalCluster, prompt: str, *, max_tokens: int, speculation: bool, write: Write) -> bool:
    """Show the answer and its figures; whether speculation left the answer as it is without (true if it is off)."""
    # The first forwards of every process are slow (memory, threads); they would be charged to whoever comes first.
    ask(cluster, _WARM_UP_PROMPT, max_tokens=_WARM_UP_TOKENS, speculation=speculation, write=_discard)
    write(f"\n> {prompt}\n\n")
    shown = ask(cluster, prompt, max_tokens=max_tokens, speculation=speculation, write=write)
    write(f"\n\n[{shown.finish_reason}]\n\n")
    if not speculation:
        write(plain_table(shown) + "\n")
        return True
    plain = ask(cluster, prompt, max_tokens=max_tokens, speculation=False, write=_discard)
    write(comparison_table(shown, plain) + "\n")
    return first_difference(shown.token_ids, plain.token_ids) is None


def addresses(cluster: LocalCluster) -> str:
    """Where everything listens, and a request to paste."""
    body = json.dumps(
        {
            "model": cluster.options.served_name,
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
            "stream": True,
            "max_tokens": 64,
        }
    )
    lines = [
        f"  HTTP (OpenAI)   {cluster.gateway_http_url}/v1",
        f"  gRPC            {cluster.gateway_grpc_address}",
        f"  metrics         {cluster.gateway_http_url}/metrics",
        *(f"  {'':<16}{pod.metrics_url}  ({pod.name})" for pod in (*cluster.verifiers, *cluster.drafters)),
        f"  logs            {cluster.options.run_dir}/",
        "",
        f"  curl -N {cluster.gateway_http_url}/v1/chat/completions -H 'content-type: application/json' \\",
        f"    -d '{body}'",
    ]
    return "\n".join(lines)


def _discard(text: str) -> None:
    del text
