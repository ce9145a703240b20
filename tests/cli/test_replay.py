"""`pdctl replay` as a user meets it, and the tables it prints. Covers comparison too."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from orchestrator.analysis.compare import Step
from orchestrator.cli.comparison import Progress
from orchestrator.cli.main import run

TRACES = Path(__file__).resolve().parents[1] / "data" / "traces"
MOONCAKE, AZURE = TRACES / "mooncake_synthetic_400.jsonl", TRACES / "azure_2023_code_400.csv"
SLO = "ttft=1.5s+2x,tpot=40ms"

TOPOLOGY = """\
name: demo
model: {path: m}
pools:
  prefill: {role: prefill, engine: sim, instances: 3, options: {max-model-len: 200000}}
  decode: {role: decode, engine: sim, options: {max-model-len: 200000}}
slo_classes:
  lazy: {e2e: 10m, priority: batch, unattainable: queue}
scheduling: {profile: slo}
"""

Pdctl = Callable[..., tuple[int, str, str]]


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    path = tmp_path / "topology.yaml"
    path.write_text(TOPOLOGY)
    return path


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


def test_policies_are_compared_in_a_table_a_page_and_json(
    pdctl: Pdctl, topology: Path, tmp_path: Path
) -> None:
    page, figures = tmp_path / "r.html", tmp_path / "r.json"
    code, told, err = pdctl(
        "replay", topology, "--trace", MOONCAKE, "--first", "80", "--rate", "0.6", "--policy",
        "topology,round-robin", "--slo", SLO, "--html", page, "--json", figures,
    )  # fmt: skip
    assert code == 0, err
    lines = told.splitlines()
    assert lines[0] == "simulated: mooncake_synthetic_400, 80 requests at 0.60/s"
    assert "  replay: TTFT <= 1.50 s + 2 x own cold prefill, TPOT <= 40.0 ms" in lines
    header = next(i for i, line in enumerate(lines) if line.startswith("policy"))
    assert [lines[header + i].split()[0] for i in (1, 2)] == ["topology", "round-robin"]
    assert all(len(line) <= 80 for line in lines)
    assert {"prefill-0", "prefill-2", "decode-0"} <= {line.split()[0] for line in lines if line}
    report = json.loads(figures.read_text())
    assert [p["name"] for p in report["policies"]] == ["topology", "round-robin"]
    assert report["policies"][0]["goodput"]["p90"] > report["policies"][1]["goodput"]["p90"]
    assert "All figures are simulated" in page.read_text()
    assert f"wrote {page}" in err


def test_json_alone_on_stdout(pdctl: Pdctl, topology: Path) -> None:
    code, told, _ = pdctl(
        "replay", topology, "--trace", AZURE, "--first", "50", "--rate", "x2", "--no-goodput", "--json", "-",
        "--mix", "lazy=0.5", "--seed", "3",
    )  # fmt: skip
    assert code == 0
    report = json.loads(told)
    assert report["seed"] == 3
    assert "classes drawn at random: 50% lazy" in report["notes"]
    assert "time divided by 2" in report["notes"]
    assert report["policies"][0]["by_class"].keys() == {"lazy", "none"}


def test_the_topologys_other_profiles_are_known_and_a_policy_that_fails_is_named(
    pdctl: Pdctl, topology: Path
) -> None:
    policy = topology.with_name("bad.py")
    policy.write_text(
        "class Bad:\n    def filter(self, request, candidates, context):\n        return nothing\n"
    )
    own = "scheduling: {profile: slo, profiles: {mine: {mode: late, prefill: {filters: [./bad.py:Bad]}}}}"
    topology.write_text(TOPOLOGY.replace("scheduling: {profile: slo}", own))
    code, told, _ = pdctl(
        "replay", topology, "--trace", AZURE, "--first", "20", "--no-goodput", "--policy", "topology,mine"
    )
    assert code == 0
    assert "\nmine " in told
    assert "mine: failed " in told
    assert f"policy ./bad.py:Bad: NameError: name 'nothing' is not defined ({policy}:3)" in told


def test_without_targets_it_says_what_is_counted(pdctl: Pdctl, topology: Path) -> None:
    code, told, _ = pdctl("replay", topology, "--trace", AZURE, "--first", "20", "--no-goodput")
    assert code == 0
    assert "nothing is promised" in told
    assert "scheduling.default_class" in told


def test_the_default_class_is_what_requests_without_one_are_promised(pdctl: Pdctl, topology: Path) -> None:
    code, told, _ = pdctl(
        "replay", topology, "--trace", AZURE, "--first", "20", "--no-goodput", "--set",
        "scheduling.default_class=interactive",
    )  # fmt: skip
    assert code == 0
    assert "  interactive: TTFT <= 1.50 s + 2 x own cold prefill, TPOT <= 40.0 ms" in told.splitlines()


def test_requests_longer_than_an_instance_takes_are_told_of(pdctl: Pdctl, tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("name: t\nmodel: {path: m}\npools: {all: {role: unified, engine: sim}}\n")
    code, told, _ = pdctl("replay", path, "--trace", MOONCAKE, "--first", "30", "--no-goodput")
    assert code == 0
    assert "more than max_model_len of some instance" in told
    assert "topology refused" in told
    assert "too-long" in told


def test_rounded_times_are_pointed_out_and_can_be_spread(
    pdctl: Pdctl, topology: Path, tmp_path: Path
) -> None:
    rounded = tmp_path / "r.csv"
    rows = [f"{3 * (i // 5)},100,5" for i in range(40)]
    rounded.write_text("\n".join(["time,input_tokens,output_tokens", *rows]))
    _, _, err = pdctl("replay", topology, "--trace", rounded, "--no-goodput")
    assert "times are rounded to 3 s; --spread 3s would spread arrivals in between" in err
    code, told, err = pdctl("replay", topology, "--trace", rounded, "--no-goodput", "--spread", "3s")
    assert (code, err) == (0, "")
    assert "arrivals spread inside quanta of 3 s" in told


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rate", "fast"], "'fast' is neither a factor such as x2 nor requests a second such as 3.5"),
        (["--rate", "x0"], "'x0' is neither"),
        (["--slo", "ttft=soon"], "'ttft=soon' is no target (like ttft=1.5s+2x,tpot=40ms"),
        (["--policy", "round-robbin"], "did you mean 'round-robin'?"),
        (["--mix", "lasy=0.5"], "there is no SLO class 'lasy'"),
        (["--mix", "lazy=most"], "'lazy=most' is not CLASS=SHARE"),
        (["--mix", "lazy=1.5"], "class shares are positive"),
        (["--spread", "3"], "'3' is not a duration"),
        (["--html", "/nowhere/at/all.html"], "there is no folder '/nowhere/at'"),
        (["--set", "router.kind=none"], "router.kind"),
    ],
)
def test_bad_arguments_are_told_without_a_traceback(
    pdctl: Pdctl, topology: Path, options: list[str], said: str
) -> None:
    code, told, err = pdctl("replay", topology, "--trace", AZURE, "--first", "5", *options)
    assert (code, told) == (2, "")
    plain = " ".join(err.replace("│", " ").split())
    assert said in plain
    assert "Traceback" not in err


def test_a_bad_trace_is_told_by_line(pdctl: Pdctl, topology: Path, tmp_path: Path) -> None:
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 5, "output_length": 2}\n{"timestamp": 1}\n')
    code, _, err = pdctl("replay", topology, "--trace", trace)
    assert (code, err) == (2, f"{trace}:2: input_length: is missing\n")


def test_the_bar_says_what_is_being_run() -> None:
    written = StringIO()
    with Progress(Console(file=written, force_terminal=True, width=100)) as progress:
        progress.step(Step("slo", 2, 3, "goodput at 90%: 1.50/s", 0.5))
    assert "slo (2 of 3): goodput at 90%: 1.50/s" in written.getvalue()
    written = StringIO()
    with Progress(Console(file=written, width=100)) as progress:
        progress.step(Step("slo", 2, 3, "goodput at 90%: 1.50/s", 0.5))
    assert written.getvalue() == ""


def test_a_warning_is_told_once_however_many_policies_are_compared(pdctl: Pdctl, topology: Path) -> None:
    key = "router.credentials.client_keys=['${env:NOT_SET_ANYWHERE}']"
    words = ("--first", "5", "--no-goodput", "--policy", "topology,round-robin,random", "--set", key)
    code, told, err = pdctl("replay", topology, "--trace", AZURE, *words)
    assert code == 0, err
    assert "simulated" in told
    assert err.count("NOT_SET_ANYWHERE is not set") == 1
