"""A folder to plan topologies in, with a fake engine and launch profiles of a test's own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.errors import Problem, TopologyError
from orchestrator.topology.plan import Plan
from orchestrator.topology.planner import plan_file

DATA = Path(__file__).resolve().parent.parent / "data" / "topology"

FAKE = "./fake_engine.py:Fake"

PAIR = f"""\
name: pair
model: {{path: ./model}}
pools:
  prefill: {{role: prefill, engine: {FAKE}, instances: 2}}
  decode: {{role: decode, engine: {FAKE}}}
"""


@dataclass
class Site:
    """A folder with the fake engine and a root of launch profiles; plans the topologies a test writes."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    ask: Callable[[Sequence[str], Sequence[str]], dict[str, str]] | None = None

    @property
    def file(self) -> Path:
        return self.folder / "t.yaml"

    def profile(self, name: str, text: str) -> None:
        path = self.folder / "profiles" / f"{name}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def plan(self, text: str, *overrides: str) -> Plan:
        self.file.write_text(text)
        return plan_file(
            self.file,
            overrides,
            environ={"HOME": "/home/me", **self.environ},
            python="/usr/bin/python3",
            ask=self.ask,
            roots=[self.folder / "profiles"],
        )

    @staticmethod
    def argv(plan: Plan, name: str) -> str:
        return " ".join(word.text for word in plan.instance(name).argv)

    def problems(self, text: str, *overrides: str) -> list[Problem]:
        with pytest.raises(TopologyError) as caught:
            self.plan(text, *overrides)
        assert caught.value.exit_code == 2
        return list(caught.value.problems)

    def told(self, text: str, *overrides: str) -> list[str]:
        return [str(p).replace(f"{self.folder}/", "") for p in self.problems(text, *overrides)]


@pytest.fixture
def site(tmp_path: Path) -> Site:
    shutil.copy(DATA / "fake_engine.py", tmp_path)
    made = Site(tmp_path)
    made.profile("fake/default", "description: None needed.\ngpus: false\n")
    return made


@pytest.fixture
def pair() -> str:
    return PAIR
