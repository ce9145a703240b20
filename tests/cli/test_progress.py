"""Progress as lines, as a live table, and the report of what failed."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from orchestrator.cli.progress import Progress, brief_s, failures, pair_lines, ps_lines
from orchestrator.core.lifecycle import State
from orchestrator.launch.status import BadPair, InstanceStatus, Phase, Status

ONE = InstanceStatus(
    name="p0", pool="prefill", role="prefill", state=State.STARTING, url="http://e", ports={}, log="/l/p0.log"
)


def status(phase: Phase, *instances: InstanceStatus, **changes: str) -> Status:
    return Status(phase, url="http://r", instances=instances, **changes)


def run(*statuses: Status, terminal: bool = False) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    consoles = [Console(file=f, force_terminal=terminal, width=100, soft_wrap=True) for f in (out, err)]
    with Progress(*consoles) as progress:
        for each in statuses:
            progress.show(each)
    return out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0s"),
        (4.24, "4.2s"),
        (59.9, "59s"),
        (750, "12m30s"),
        (18_120, "5h02m"),
        (273_600, "3d04h"),
    ],
)
def test_lengths_of_time(seconds: float, text: str) -> None:
    assert brief_s(seconds) == text


def test_each_change_is_a_line_and_only_the_url_is_on_stdout() -> None:
    ready = replace(ONE, state=State.READY)
    out, err = run(
        status(Phase.WORKING, ONE),
        status(Phase.WORKING, replace(ONE, since_s=1.0)),
        status(Phase.READY, ready),
        status(Phase.READY, ready),
    )
    assert out == "http://r\n"
    assert [line.split()[:2] for line in err.splitlines()] == [["p0", "STARTING"], ["p0", "READY"]]


def test_the_url_is_printed_once_for_who_reads_it() -> None:
    ready = status(Phase.READY, ONE)
    out, err = run(ready, status(Phase.WORKING, ONE), ready)
    assert out == "http://r\n"
    assert "ready again: http://r" in err


def test_on_one_terminal_the_live_display_prints_the_url() -> None:
    out, err = run(status(Phase.READY, ONE), terminal=True)
    assert out == ""
    assert "http://r" in err


def test_without_a_terminal_it_says_now_and_then_what_is_waited_for() -> None:
    err = io.StringIO()
    waiting = replace(ONE, since_s=75.0, last_line="[80%] loading", detail="GET /ready: 503")
    ready = replace(ONE, name="d0", state=State.READY)
    with Progress(Console(file=io.StringIO()), Console(file=err, width=200), still_s=0.0) as progress:
        progress.show(status(Phase.WORKING, waiting, ready))
        progress.show(status(Phase.WORKING, waiting, ready))
    lines = err.getvalue().splitlines()
    assert lines[-1] == "p0               still STARTING after 1m15s: [80%] loading  [GET /ready: 503]"
    assert not any("d0" in line and "still" in line for line in lines)


def test_a_new_incarnation_in_the_same_state_is_a_change() -> None:
    _, err = run(
        status(Phase.WORKING, replace(ONE, incarnation=1)), status(Phase.WORKING, replace(ONE, incarnation=2))
    )
    assert err.count("STARTING") == 2


def test_a_failure_says_why_and_where_to_look() -> None:
    bad = replace(
        ONE,
        state=State.FATAL,
        restarts=2,
        last_error="exited with code 1 [bold] (do this)",
        failure=("[red]boom", "second"),
    )
    out, err = run(status(Phase.FAILED, bad, problem="p0 did not become ready"))
    assert out == ""
    assert err.splitlines()[1:] == [
        "p0 did not become ready",
        "p0: FATAL after 2 restarts: exited with code 1 [bold] (do this)",
        "  log: /l/p0.log",
        "  | [red]boom",
        "  | second",
    ]


def test_a_failure_without_restarts_or_reason_makes_no_words() -> None:
    assert next(failures(status(Phase.WORKING, ONE))) == "p0: STARTING"
    one = replace(ONE, state=State.FATAL, restarts=1, last_error="killed by SIGKILL")
    assert next(failures(status(Phase.FAILED, one))) == "p0: FATAL after 1 restart: killed by SIGKILL"


def test_one_that_was_found_dead_begins_with_how_it_ended() -> None:
    pending = replace(ONE, state=State.PENDING, last_error="ended while no controller was watching")
    starting = replace(pending, state=State.STARTING)
    for before in ((pending,), ()):
        _, err = run(*(status(Phase.WORKING, i) for i in (*before, starting)))
        assert err.splitlines()[-1] == "p0               STARTING: ended while no controller was watching"


def test_a_router_that_is_up_and_cannot_serve_says_why() -> None:
    router = replace(
        ONE, name="router", state=State.READY, detail="finds no engine to serve with: GET /ready: 503"
    )
    assert list(failures(status(Phase.WORKING, router))) == [
        "router: finds no engine to serve with: GET /ready: 503"
    ]


def test_what_is_asked_for_is_not_timed_and_no_time_is_negative() -> None:
    ready = replace(ONE, state=State.READY, since_s=3600.0)
    _, err = run(
        status(Phase.READY, ready),
        status(Phase.STOPPING, replace(ready, state=State.DRAINING, since_s=0.0)),
        status(Phase.STOPPING, replace(ready, state=State.STOPPING, since_s=9.0)),
        status(Phase.STOPPED, replace(ready, state=State.STOPPED, since_s=99.0)),
    )
    lines = [line.rstrip() for line in err.splitlines() if line.startswith("p0")]
    assert lines[1:3] == ["p0               DRAINING", "p0               STOPPING"]
    assert lines[3] == "p0               STOPPED after 0.0s"


def test_what_is_well_is_not_reported() -> None:
    assert list(failures(status(Phase.FAILED, replace(ONE, state=State.READY)))) == []


def test_without_a_router_every_engine_is_where_clients_go() -> None:
    out, _ = run(Status(Phase.READY, instances=(ONE, replace(ONE, url="http://f"))))
    assert out == "http://e\nhttp://f\n"


def test_the_live_table_shows_state_time_and_last_line() -> None:
    _, err = run(
        status(
            Phase.WORKING, replace(ONE, since_s=75.0, last_line="[80%] loading", detail="GET /ready: 503")
        ),
        terminal=True,
    )
    assert "INSTANCE" in err
    assert "1m15s" in err
    assert "[80%] loading  [GET /ready: 503]" in err


def test_below_the_live_table_is_a_line_for_what_the_terminal_echoes() -> None:
    err = io.StringIO()
    consoles = [Console(file=f, force_terminal=True, width=100) for f in (io.StringIO(), err)]
    with Progress(*consoles) as progress:
        progress.show(status(Phase.WORKING, replace(ONE, last_line="x" * 200)))
        assert err.getvalue().endswith("\n")
        below = len(err.getvalue())
        progress.show(status(Phase.WORKING, replace(ONE, last_line="y" * 200)))
        again = err.getvalue()[below:]
    # Heading, row and the empty line are wiped: the cursor goes up twice.
    assert again.startswith("\r\x1b[2K" + "\x1b[1A\x1b[2K" * 2)


def test_an_error_that_is_past_is_told_with_its_age() -> None:
    past = replace(ONE, state=State.READY, last_error="killed by SIGKILL", uptime_s=185.0)
    down = replace(past, name="p1", state=State.BACKOFF, uptime_s=None)
    well = replace(past, name="p2", last_error="")
    lines = list(ps_lines([past, down, well]))
    assert lines[4:] == ["", "p0: killed by SIGKILL, over 3m05s ago", "p1: killed by SIGKILL"]
    assert len(list(ps_lines([well]))) == 2
    waiting = replace(down, detail="next try after 2.0 s")
    assert list(ps_lines([waiting]))[2:] == ["", "p1: next try after 2.0 s", "p1: killed by SIGKILL"]


def test_the_table_fits_a_terminal_and_errors_are_never_cut() -> None:
    url = "http://10.0.100.100:20000"
    usual = replace(ONE, name="prefill-0", role="prefill", url=url, uptime_s=45_000.0, pid=4_194_304)
    heading, row, _, error = ps_lines([replace(usual, state=State.READY, last_error="x" * 300)])
    assert max(len(heading), len(row)) <= 80
    assert heading.index("STATE") == row.index("READY")
    assert error == f"prefill-0: {'x' * 300}, over 12h30m ago"


def test_ps_says_of_a_circuit_that_is_not_closed() -> None:
    ready = replace(ONE, state=State.READY)
    shown = [list(ps_lines([replace(ready, circuit=c)]))[1:] for c in (None, "closed", "half-open", "open")]
    assert [lines[2:] for lines in shown] == [
        [],
        [],
        ["p0: circuit half-open: it failed, and is about to be tried"],
        ["p0: circuit open: it failed, and gets no requests for now"],
    ]


def test_ps_names_the_first_bad_pairs_of_each_reason() -> None:
    assert list(pair_lines([])) == []
    many = [BadPair("p0", f"d{n}", "it lies") for n in range(8)]
    assert list(pair_lines([*many, BadPair("", "u0", "its tries fail")])) == [
        "",
        "bad pairs: p0 > d0, p0 > d1, p0 > d2, p0 > d3, p0 > d4, p0 > d5 and 2 more: it lies",
        "bad pairs: u0: its tries fail",
    ]
