"""What is said of an instance that failed."""

from __future__ import annotations

import pytest

from orchestrator.engines.base import LogHint
from orchestrator.launch.failure import SHOWN_LINES, Failure, exit_text, explain, lacks_module
from orchestrator.launch.oom import Oom

HINTS = (
    LogHint(r"CUDA out of memory", "lower the memory fraction"),
    LogHint(r"[Aa]ddress already in use", "another process has the port"),
)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1, "exited with code 1"),
        (0, "exited with code 0"),
        (-9, "killed by SIGKILL"),
        (-11, "killed by SIGSEGV"),
        (-200, "killed by signal 200"),
        (None, "ended (code or signal not known: an earlier controller was its parent)"),
    ],
)
def test_exit_codes_in_words(code: int | None, text: str) -> None:
    assert exit_text(code) == text


def test_the_first_hint_of_the_adapter_that_matches_wins() -> None:
    lines = ["OSError: Address already in use", "torch: CUDA out of memory"]
    assert explain("x", -9, lines, HINTS, ()).hint == "lower the memory fraction"


def test_a_kill_from_outside_points_to_the_kernel() -> None:
    assert "oom" in explain("x", -9, ["all was well"], HINTS, ()).hint


KERNEL = "the kernel killed it, or a process of it, for want of memory"


@pytest.mark.parametrize(
    ("code", "line", "oom", "hint"),
    [
        (
            -9,
            "CUDA out of memory",
            Oom.PROVEN,
            "the kernel killed it, or a process of it, for want of memory",
        ),
        (1, "worker died", Oom.PROVEN, KERNEL),
        (None, "", Oom.PROVEN, KERNEL),
        (1, "CUDA out of memory", Oom.LIKELY, "lower the memory fraction"),
        (
            1,
            "worker died",
            Oom.LIKELY,
            "just then the kernel killed a process of this host for want of memory",
        ),
        (-9, "", Oom.RULED_OUT, "somebody or something sent it"),
        (-11, "", Oom.RULED_OUT, "it crashed in native code"),
        (None, "", Oom.RULED_OUT, ""),
        (None, "", Oom.UNKNOWN, "a kill, also one for want of memory, leaves no word in a log"),
    ],
)
def test_what_the_kernel_says_of_memory_counts(code: int | None, line: str, oom: Oom, hint: str) -> None:
    found = explain("x", code, [line], HINTS, (), exited=True, oom=oom).hint
    assert found.startswith(hint)
    assert bool(found) is bool(hint)


def test_one_that_is_late_has_no_exit_to_be_guessed_at() -> None:
    assert explain("not ready within 5 s", None, [], HINTS, ()).hint == ""


def test_nothing_known_is_nothing_said() -> None:
    assert explain("x", 1, ["boom"], HINTS, ()) == Failure("x", ("boom",), "")


def test_only_the_last_lines_are_shown_but_all_are_searched() -> None:
    lines = ["CUDA out of memory", *(str(n) for n in range(100))]
    failure = explain("x", 1, lines, HINTS, ())
    assert failure.hint == "lower the memory fraction"
    assert failure.lines == tuple(str(n) for n in range(100 - SHOWN_LINES, 100))


def test_secrets_are_struck_out() -> None:
    failure = explain("x", 1, ["server_args api_key='sk-long-key'"], (), {"sk-long", "sk-long-key"})
    assert failure.lines == ("server_args api_key='***'",)


ARGV = ["python", "-P", "-m", "engine.launch", "--model", "m"]


@pytest.mark.parametrize(
    ("line", "lacks"),
    [
        ("ModuleNotFoundError: No module named 'engine'", True),
        ("/usr/bin/python: No module named engine.launch", True),
        ("ModuleNotFoundError: No module named 'engine.launch'", True),
        ("ModuleNotFoundError: No module named 'engine_kernels'", False),
        ("ModuleNotFoundError: No module named 'engine.kernels'", False),
        ("no module", False),
    ],
)
def test_whether_the_engine_is_installed_at_all(line: str, lacks: bool) -> None:
    assert lacks_module(ARGV, ["before", line]) is lacks
    failure = explain("x", 1, [line], (), (), ARGV)
    assert (failure.hopeless, bool(failure.hint)) == (lacks, lacks)


def test_without_a_module_none_is_lacking() -> None:
    assert not lacks_module(["engine"], ["No module named 'engine'"])
    assert not lacks_module(["engine", "-m"], ["No module named 'engine'"])
    assert not explain("x", 1, ["No module named 'engine'"], (), ()).hopeless
