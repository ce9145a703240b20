"""Mock engines in C that cost next to nothing, in both dialects, and the load generator beside them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.native import program
from benchmarks.processes import ask, free_port, started, until

MODEL = "bench"
TOKENS = 10_000_000
"""KV capacity and longest prompt that they tell: a body of 1 MB must fit."""

TICK_US = 10_000


@dataclass(frozen=True, slots=True)
class Engine:
    """Where an engine listens; a mock's bootstrap server is the same port."""

    role: str
    port: int
    bootstrap_port: int

    @property
    def url(self) -> str:
        """Its root."""
        return f"http://127.0.0.1:{self.port}"


def _common(role: str, tokens: int) -> dict[str, Any]:
    head = {"id": "chatcmpl-0123456789abcdef0123456789abcdef", "created": 1_764_500_000, "model": MODEL}
    usage = {"prompt_tokens": 256, "completion_tokens": tokens, "total_tokens": 256 + tokens}
    message = {"role": "assistant", "content": " token" * tokens}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "length"}
    model = {"id": MODEL, "object": "model", "created": 1, "root": MODEL, "max_model_len": TOKENS}
    event = {**head, "object": "chat.completion.chunk"}

    def chunk(finish: str | None) -> dict[str, Any]:
        delta = {"content": " token"}
        return {
            **event,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}],
        }

    return {
        "answer": {**head, "object": "chat.completion", "choices": [choice], "usage": usage},
        "event": chunk(None),
        "last": chunk("length"),
        "/v1/models": {"object": "list", "data": [model]},
        **{path: {} for path in ("/health", "/health_generate", "/ready", "/ping", "/abort_request")},
    }


def _sglang(role: str, port: int) -> dict[str, Any]:
    mode = "null" if role == "unified" else role
    sizes = {
        "version": "0.5.23", "tp_size": 1, "pp_size": 1, "dp_size": 1, "page_size": 64, "dtype": "bfloat16",
        "kv_cache_dtype": "auto", "max_running_requests": 256, "max_total_num_tokens": TOKENS,
        "max_req_input_len": TOKENS, "model_path": MODEL, "served_model_name": MODEL, "tokenizer_path": MODEL,
        "disaggregation_mode": mode, "disaggregation_transfer_backend": "mooncake",
        "disaggregation_bootstrap_port": port, "startup_time": {"load_weight": float(port)},
    }  # fmt: skip
    counts = dict.fromkeys(
        ("num_running_reqs", "num_waiting_reqs", "num_used_tokens", "num_waiting_uncached_tokens"), 0
    )
    load = {
        **counts, "timestamp": 1_764_500_000.0, "dp_rank": 0, "num_total_tokens": 0, "token_usage": 0.0,
        "max_total_num_tokens": TOKENS, "max_running_requests": 256, "gen_throughput": 0.0,
        "cache_hit_rate": 0.0, "utilization": 0.0, "disaggregation": {"mode": mode},
    }  # fmt: skip
    loads = {
        "timestamp": "2025-11-30T10:53:20+00:00",
        "version": "0.5.23",
        "dp_rank_count": 1,
        "loads": [load],
    }
    info = {"model_path": MODEL, "served_model_name": MODEL, "is_generation": True, "model_type": "llama"}
    route = {"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": 64,
             "kv_cache_dtype": "auto", "follow_bootstrap_room": True}  # fmt: skip
    told = {"/server_info": sizes, "/model_info": {**info, "disaggregation_mode": mode}}
    return {
        **told, **{path.replace("/", "/get_"): body for path, body in told.items()},
        "/v1/loads": loads, "/route": route,
        "/get_load": [{"dp_rank": 0, "num_reqs": 0, "num_waiting_reqs": 0, "num_tokens": 0}],
    }  # fmt: skip


def _vllm(role: str, port: int) -> dict[str, Any]:
    labels = f'engine="0",model_name="{MODEL}"'
    metrics = (
        f"vllm:num_requests_running{{{labels}}} 0.0\nvllm:num_requests_waiting{{{labels}}} 0.0\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} 0.0\n"
        f'vllm:cache_config_info{{block_size="64",engine="0",num_gpu_blocks="{TOKENS // 64}"}} 1.0\n'
        f"process_start_time_seconds {1_764_500_000 + port}.0\n"
    )
    return {"/version": {"version": "0.32.0"}, "/metrics": metrics}


def answers(dialect: str, role: str, port: int) -> str:
    """What an engine answers, in the form that `native/engine.c` reads."""
    whole = _common(role, 1 if role == "prefill" else 64)
    whole |= _vllm(role, port) if dialect == "vllm" else _sglang(role, port)
    if dialect == "vllm" and role == "prefill":
        whole["answer"]["kv_transfer_params"] = {
            "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2, 3, 4]],
            "remote_engine_id": f"engine-{port}", "remote_request_id": "request", "remote_host": "127.0.0.1",
            "remote_port": port, "tp_size": 1, "dcp_size": 1, "pp_size": 1, "remote_num_tokens": 256,
            "remote_blocks_expiry_time": None, "transfer_mode": "pull", "remote_prefill_cached_tokens": 0,
        }  # fmt: skip
    lines = []
    for name, body in whole.items():
        text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
        lines.append(name + "\t" + text.replace("\n", "\\n"))
    return "\n".join(lines) + "\n"


def _healthy(port: int) -> bool:
    return ask(port, "GET", "/health")[0] == 200


@contextlib.contextmanager
def engines(
    folder: Path, dialect: str, roles: tuple[str, ...], tick_us: int = TICK_US
) -> Iterator[list[Engine]]:
    """A mock for each of `roles`, up and answering."""
    with contextlib.ExitStack() as stack:
        made = []
        for number, role in enumerate(roles):
            port = free_port()
            name = f"{dialect}-{role}-{number}"
            table, log = folder / f"{name}.txt", folder / f"{name}.log"
            table.write_text(answers(dialect, role, port))
            most = 1 if role == "prefill" else 1_000_000
            argv = [str(word) for word in (program("engine"), port, tick_us, most, table)]
            process = stack.enter_context(started(argv, log))
            until(partial(_healthy, port), process, log, name)
            made.append(Engine(role, port, port))
        yield made


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of load. `rate` in requests a second; 0: each connection goes on when it has its answer."""

    name: str
    requests: int
    concurrency: int
    body_bytes: int
    tokens: int = 0
    rate: float = 0.0

    def body(self) -> bytes:
        """A chat request of `body_bytes` whose beginning the load generator makes unique; a stream if it has
        `tokens`."""
        told: dict[str, Any] = {"model": MODEL, "max_tokens": self.tokens or 64, "temperature": 0.7}
        if self.tokens:
            told |= {"stream": True, "ignore_eos": True}
        told["messages"] = [{"role": "user", "content": "@@@@@@@@ "}]
        room = self.body_bytes - len(json.dumps(told))
        text = "The quick brown fox jumps over the lazy dog. " * (room // 45 + 1)
        told["messages"][0]["content"] += text[: max(0, room)]
        return json.dumps(told).encode()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the load generator saw. Times are milliseconds; `chunks` are streamed ones that hold tokens."""

    latency_ms: Mapping[str, float]
    first_byte_ms: Mapping[str, float]
    good: int
    failed: int
    chunks: int
    seconds: float
    own_cpu_s: float


def outcome(text: str) -> Outcome:
    """From what it prints."""
    told = json.loads(text)
    chunks = max(0, told["events"] - told["good"])  # each stream has a [DONE]
    fields = ("latency_ms", "first_byte_ms", "good", "failed", "seconds", "own_cpu_s")
    return Outcome(chunks=chunks, **{name: told[name] for name in fields})


def put(load: Load, port: int, folder: Path, timeout_s: float = 60.0) -> Outcome:
    """Put a load on a port of this machine."""
    body = folder / f"body-{load.body_bytes}-{load.tokens}.json"
    if not body.exists():
        body.write_bytes(load.body())
    numbers = (load.concurrency, load.requests, load.rate, timeout_s)
    argv = [program("load"), str(port), "/v1/chat/completions", body, *map(str, numbers)]
    done = subprocess.run([str(word) for word in argv], check=True, capture_output=True, text=True)
    time.sleep(0.05)  # what follows an answer is part of what it costs
    return outcome(done.stdout)
