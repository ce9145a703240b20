"""Each engine's own benchmark through the router: every request succeeds."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from asks import MODEL
from pair import Pair

PROMPTS, INPUT, OUTPUT_TOKENS = 24, 256, 16
GUARD_S = 300.0


def run(python: Path, words: Sequence[str]) -> str:
    """A benchmark run to its end; its output."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SGLANG_USE_CPU_ENGINE": "1"}
    done = subprocess.run(
        [python, *words],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=GUARD_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3_000:]
    return done.stdout


def test_the_engine_s_benchmark(pair: Pair, installed: dict[str, Path], tmp_path: Path) -> None:
    before = pair.router("pdctl_requests_total", end="completed", status="200")
    bench = {"vllm": vllm_bench, "sglang": sglang_bench}[pair.family.engine]
    bench(pair, installed, tmp_path / "result.json")
    assert pair.router("pdctl_requests_total", end="completed", status="200") >= before + PROMPTS
    pair.wait_until_idle()


def vllm_bench(pair: Pair, installed: dict[str, Path], result: Path) -> None:
    """`vllm bench serve`."""
    words = (
        *("-m", "vllm.entrypoints.cli.main", "bench", "serve"),
        *("--backend", "openai", "--base-url", pair.deployment.url, "--endpoint", "/v1/completions"),
        *("--model", MODEL, "--tokenizer", installed["model"], "--dataset-name", "random"),
        *("--random-input-len", INPUT, "--random-output-len", OUTPUT_TOKENS, "--num-prompts", PROMPTS),
        *("--request-rate", 8, "--max-concurrency", 8, "--ignore-eos", "--temperature", 0, "--seed", 2),
        *("--save-result", "--result-dir", result.parent, "--result-filename", result.name),
    )
    output = run(installed["vllm"] / "bin" / "python", [str(word) for word in words])
    told = json.loads(result.read_text())
    assert (told["completed"], told["failed"]) == (PROMPTS, 0), output[-3_000:]
    assert told["total_output_tokens"] == PROMPTS * OUTPUT_TOKENS


def sglang_bench(pair: Pair, installed: dict[str, Path], result: Path) -> None:
    """`sglang.benchmark.serving`."""
    words = (
        *("-m", "sglang.benchmark.serving", "--backend", "sglang", "--base-url", pair.deployment.url),
        *("--model", MODEL, "--tokenizer", installed["model"], "--dataset-name", "random-ids"),
        *("--random-input-len", INPUT, "--random-output-len", OUTPUT_TOKENS, "--random-range-ratio", 1),
        *("--num-prompts", PROMPTS, "--request-rate", 8, "--max-concurrency", 8, "--seed", 2),
        *("--output-file", result),
    )
    output = run(installed["sglang"] / "bin" / "python", [str(word) for word in words])
    told = json.loads(result.read_text().splitlines()[-1])
    assert told["completed"] == PROMPTS, output[-3_000:]
    assert told["total_output_tokens"] == PROMPTS * OUTPUT_TOKENS
