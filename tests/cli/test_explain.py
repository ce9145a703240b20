"""`pdctl explain` as a user meets it: one request, lists, an id that is not there, a broken topology."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.cli.main import run

TOPOLOGY = """\
name: demo
model: {path: m}
state_dir: ./state
pools:
  prefill: {role: prefill, engine: sim}
  decode: {role: decode, engine: sim}
"""

Pdctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def pdctl(capsys: pytest.CaptureFixture[str]) -> Pdctl:
    """Runs pdctl in this process; exit code, stdout, stderr."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            run([str(a) for a in arguments])
        told = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 0 if code is None else 1), told.out, told.err

    return call


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "t.yaml"
    path.write_text(TOPOLOGY)
    return path


def record(number: int, **changes: object) -> dict[str, object]:
    return {
        "request_id": f"{number:04}" + "a" * 28,
        "client_request_id": f"mine-{number:04}",
        "recorded": "full",
        "arrived_s": 1_800_000_000.0 + number,
        "model": "m",
        "path": "chat",
        "slo_class": None,
        "prompt_tokens": 100 * number,
        "output_tokens": 5,
        "end": "completed",
        "status": 200,
        "reason": "",
        "route": {"decode": "u0"},
        "ttft_s": 0.01 * number,
        "e2e_s": 0.5,
        "stages": {"queue": 0.001, "first_token": 0.01 * number},
        "promise": None,
        **changes,
    }


PROMISE = {
    "quantile": 0.99,
    **dict.fromkeys(("ttft_bound_s", "tpot_bound_s", "e2e_bound_s", "tpot_s")),
}


@pytest.fixture
def recorded(topology: Path) -> Path:
    """The folder of four records: the second is the slowest, the third was refused."""
    folder = topology.parent / "state" / "decisions"
    folder.mkdir(parents=True)
    records = (
        record(1, slo_class="chat", tenant="acme", promise={**PROMISE, "verdict": "kept"}),
        record(2, slo_class="chat", ttft_s=9.0, promise={**PROMISE, "verdict": "missed-ttft"}),
        record(3, end="refused", status=429, reason="queue-full", route=None, ttft_s=None, e2e_s=0.002),
        record(4),
    )
    text = "".join(json.dumps(one, separators=(",", ":")) + "\n" for one in records)
    (folder / "00000001.jsonl").write_text(text)
    return folder


def shown(out: str) -> list[str]:
    """Which requests a list shows, in its order."""
    return [line.split()[2][:4] for line in out.splitlines()[1:]]


@pytest.mark.parametrize("wanted", ["0002" + "a" * 28, "mine-0002", "0002"])
def test_one_request_in_words(pdctl: Pdctl, topology: Path, recorded: Path, wanted: str) -> None:
    code, out, _ = pdctl("explain", topology, wanted)
    assert code == 0
    assert out.startswith(f"Request 0002{'a' * 28} (its client calls it mine-0002)\n")
    assert "Completed: 5 tokens" in out


def test_the_record_itself(pdctl: Pdctl, topology: Path, recorded: Path) -> None:
    code, out, _ = pdctl("explain", topology, "mine-0003", "--json")
    assert code == 0
    assert json.loads(out)["reason"] == "queue-full"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), ["0004", "0003", "0002", "0001"]),
        (("--last", "-n", "2"), ["0004", "0003"]),
        (("--slow", "-n", "3"), ["0002", "0004", "0001"]),
        (("--refused",), ["0003"]),
        (("--missed",), ["0002"]),
        (("--class", "chat"), ["0002", "0001"]),
        (("--class", "chat", "--tenant", "acme"), ["0001"]),
    ],
)
def test_lists(
    pdctl: Pdctl, topology: Path, recorded: Path, words: tuple[str, ...], expected: list[str]
) -> None:
    code, out, _ = pdctl("explain", topology, *words)
    assert code == 0
    assert shown(out) == expected
    code, out, _ = pdctl("explain", topology, *words, "--json")
    assert [json.loads(line)["request_id"][:4] for line in out.splitlines()] == expected


def test_an_id_that_is_not_there_names_the_nearest_or_how_to_record_all(
    pdctl: Pdctl, topology: Path, recorded: Path
) -> None:
    code, out, err = pdctl("explain", topology, "mine-00O2")
    assert (code, out) == (1, "")
    assert "did you mean" in err
    assert "mine-0002" in err
    _, _, err = pdctl("explain", topology, "something-else-altogether")
    assert "scheduling.decisions.record: full" in err
    assert "[not-recorded]" in err


def test_where_nothing_is_recorded_that_is_said(pdctl: Pdctl, topology: Path) -> None:
    code, out, err = pdctl("explain", topology)
    assert (code, out) == (0, "")
    assert "nothing is recorded in" in err
    code, _, err = pdctl("explain", topology, "abcd")
    assert code == 1
    assert "nothing is recorded in" in err


def test_a_list_of_nothing_says_of_what(pdctl: Pdctl, topology: Path, recorded: Path) -> None:
    code, out, err = pdctl("explain", topology, "--missed", "--tenant", "acme")
    assert (code, out) == (0, "")
    assert "nothing is missed, of tenant acme in" in err


def test_an_id_alone_is_looked_up_for_the_topology_of_the_folder(
    pdctl: Pdctl, topology: Path, recorded: Path
) -> None:
    code, _, err = pdctl("explain", "0002" + "a" * 28)
    assert code == 2
    assert "topology.yaml" in err


def test_an_id_and_a_list_are_too_much(pdctl: Pdctl, topology: Path, recorded: Path) -> None:
    code, _, err = pdctl("explain", topology, "0002", "--slow")
    assert code == 2
    assert "either a REQUEST_ID or a list" in " ".join(err.split())


def test_a_topology_that_is_broken_meanwhile_does_not_hide_what_was_recorded(
    pdctl: Pdctl, topology: Path, recorded: Path
) -> None:
    topology.write_text(TOPOLOGY + "nonsense: 1\n")
    code, out, err = pdctl("explain", topology, "mine-0001")
    assert code == 0
    assert "mine-0001" in out
    assert "warning" in err
