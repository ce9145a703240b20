"""The launch profiles that come with pdctl: sound for every role, numbers with their source, tried or not."""

from __future__ import annotations

import re
from pathlib import Path

import hosttree
import pytest

from orchestrator.core.types import Role
from orchestrator.fabric.host import read
from orchestrator.topology.fabric import Report, dump
from orchestrator.topology.planner import plan_file
from orchestrator.topology.profiles import Finder, shipped_roots

ROOT = Path(__file__).resolve().parents[2] / "launch_profiles"
FILES = sorted(ROOT.glob("*/*.yaml"))
HARDWARE = ("h100x8", "h200x8", "a100x8", "l40s", "l20", "mi300x")

PAIR = """\
name: pair
model: {path: Qwen/Qwen3-32B, vocab_size: 151936}
nodes: [{name: a, address: 10.0.0.1, gpus: 4, nics: {0: n0, 1: n1, 2: n2, 3: n3}}]
pools:
  prefill: {role: prefill, engine: ENGINE, profile: PROFILE, tp: 2}
  decode: {role: decode, engine: ENGINE, profile: PROFILE, tp: 2}
router: {auth: none}
"""


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.stem}"


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_there_is_one_for_each_machine(engine: str) -> None:
    assert {f"{engine}/{name}" for name in (*HARDWARE, "cpu", "default")} <= set(map(name_of, FILES))


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_it_is_sound_for_every_role_and_says_whether_it_was_tried(path: Path) -> None:
    finder = Finder(shipped_roots(), Path())
    for role in Role:
        profile, problems = finder.find(name_of(path), path.parent.name, role)
        assert problems == []
        assert profile.tried is (path.stem not in HARDWARE)
        assert (profile.card is not None) is (path.stem in HARDWARE)
        assert profile.ready_timeout_s


@pytest.mark.parametrize("path", [p for p in FILES if p.stem in HARDWARE], ids=name_of)
def test_a_plan_by_it_knows_its_flags_and_warns_that_it_is_untried(path: Path, tmp_path: Path) -> None:
    engine = path.parent.name
    file = tmp_path / "t.yaml"
    file.write_text(PAIR.replace("ENGINE", engine).replace("PROFILE", path.stem))
    plan = plan_file(file, environ={"HOME": "/home/me"}, python="/usr/bin/python3")
    rules = [re.findall(r"\[([a-z-]+)\]", warning)[0] for warning in plan.warnings]
    assert rules == ["untried", "untried"], plan.warnings
    prefill, decode = plan.instances
    assert not prefill.tried
    # What it counts in, and what the engine is told.
    flag = {"sglang": "--chunked-prefill-size", "vllm": "--max-num-batched-tokens"}[engine]
    words = [word.text for word in prefill.argv]
    profile, _ = Finder(shipped_roots(), Path()).find(path.stem, engine, Role.PREFILL)
    assert profile.prior is not None
    assert words[words.index(flag) + 1] == str(profile.prior.chunk_tokens)
    assert {"prefill", "exposed", "step"} <= set(decode.facts["prior"])
    # A stream of 8,192 tokens ends before KILL.
    assert decode.drain_s > 8192 * profile.prior.step.base
    assert prefill.drain_s <= 60


@pytest.mark.parametrize("path", [p for p in FILES if p.stem != "default"], ids=name_of)
def test_every_number_has_its_source_beside_it(path: Path) -> None:
    """A comment on its line, or above it with nothing but settings between."""
    explained = False
    for number, line in enumerate(path.read_text().splitlines(), 1):
        text = line.strip()
        if text.startswith("#"):
            explained = True
        elif not text or text.endswith(":"):
            explained = explained and bool(text)
        elif re.search(r": .*\d", text) and not text.startswith(("description", "extends", "measured")):
            assert explained or "#" in text, f"{path.name}:{number}: {text}"


def test_a_scaled_prior_is_that_of_h100_by_the_data_sheets() -> None:
    """Dense bf16 TFLOPS and TB/s: H100 989, 3.35; A100 312, 2.039; L40S 362, L20 119.5, both 0.864."""
    finder = Finder(shipped_roots(), Path())

    def prior(name: str):
        profile, _ = finder.find(name, "sglang", Role.DECODE)
        assert profile.prior is not None
        assert profile.prior.step is not None
        return profile.prior

    base = prior("h100x8")
    for name, tflops, tbps in (("a100x8", 312, 2.039), ("l40s", 362, 0.864), ("l20", 119.5, 0.864)):
        scaled = prior(name)
        for field in ("token", "token2"):
            ratio = getattr(scaled.prefill, field) / getattr(base.prefill, field)
            assert ratio == pytest.approx(989 / tflops, rel=0.01), (name, field)
        assert scaled.prefill.floor / base.prefill.floor == pytest.approx(3.35 / tbps, rel=0.01), name
        assert scaled.step.base / base.step.base == pytest.approx(3.35 / tbps, rel=0.01), name
        assert scaled.step.token / base.step.token == pytest.approx(3.35 / tbps, rel=0.01), name
    assert prior("h200x8").step.token / base.step.token == pytest.approx(3.35 / 4.8, rel=0.01)
    assert prior("mi300x").step.token / base.step.token == pytest.approx(3.35 / 5.3, rel=0.01)


@pytest.mark.parametrize(
    ("engine", "profile", "host"),
    [
        ("sglang", "h100x8", "dgx-h100"),
        ("vllm", "h100x8", "dgx-h100"),
        ("sglang", "h200x8", "hgx-h200"),
        ("vllm", "h200x8", "hgx-h200"),
        ("sglang", "l40s", "pcie-two-numa"),
        ("vllm", "l40s", "pcie-two-numa"),
        ("sglang", "mi300x", "mi300x"),
        ("vllm", "mi300x", "mi300x"),
    ],
)
def test_on_the_machine_it_is_for_each_rank_has_its_nic(
    tmp_path: Path, engine: str, profile: str, host: str
) -> None:
    fabric = read(hosttree.unfold(host, tmp_path / "root"))
    (tmp_path / "a.json").write_text(dump(Report(fabric)))
    text = PAIR.replace("ENGINE", engine).replace("PROFILE", profile)
    text = re.sub(r"gpus: 4, nics: \{[^}]*\}", "fabric: a.json", text)
    (tmp_path / "t.yaml").write_text(text)
    plan = plan_file(tmp_path / "t.yaml", environ={"HOME": "/home/me"}, python="/usr/bin/python3")
    assert not [w for w in plan.warnings if "untried" not in w and "idle-nics" not in w]
    words = " ".join(w.text for i in plan.instances for w in (*i.argv, *i.env.values()))
    # All that the GPUs in use have near them.
    assert "mlx5_0" in words or "0000:18:00.0" in words
