"""docs/policies.md is right: every example in it validates, the worked one runs, and no policy is missing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from orchestrator import plugins
from orchestrator.policy.build import GROUP, build, params_model
from orchestrator.policy.params import RESERVED
from orchestrator.policy.profiles import PROFILES

TEXT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
SECTIONS = dict(re.findall(r"^### `([\w-]+)`\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE))


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def file_after(name, language):
    """The first block of `language` after the file is named."""
    return blocks(TEXT[TEXT.index(f"`{name}`") :], language)[0]


def test_it_has_a_section_for_every_registered_policy_and_no_other():
    assert set(SECTIONS) == set(plugins.known(GROUP))


@pytest.mark.parametrize("name", SECTIONS)
def test_each_policys_example_validates_and_shows_it(name):
    (example,) = blocks(SECTIONS[name], "yaml")
    assert f"use: {name}" in example
    assert build({"unified": yaml.safe_load(example)})


@pytest.mark.parametrize("name", SECTIONS)
def test_each_policys_parameters_are_listed_with_their_defaults(name):
    listed = dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", SECTIONS[name], re.MULTILINE))
    model = params_model(name, plugins.resolve(GROUP, name))
    fields = model.model_fields if model else {}
    told = {field: "none" if f.default is None else str(f.default) for field, f in fields.items()}
    assert listed == told
    assert not RESERVED & set(listed)


def test_every_shipped_profile_is_listed():
    assert all(f"| `{name}` |" in TEXT for name in PROFILES)


def test_the_opening_example_builds():
    section = yaml.safe_load(blocks(TEXT, "yaml")[0])["scheduling"]
    assert build(section["profiles"][section["profile"]])


def test_the_worked_example_loads_and_its_tests_pass(tmp_path):
    for name, language in (
        ("maintenance.py", "python"),
        ("topology.yaml", "yaml"),
        ("test_maintenance.py", "python"),
    ):
        (tmp_path / name).write_text(file_after(name, language))
    section = yaml.safe_load((tmp_path / "topology.yaml").read_text())["scheduling"]
    assert build(section["profiles"][section["profile"]], tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_maintenance.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
