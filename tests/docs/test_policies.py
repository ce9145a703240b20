"""docs/policies.md is right: examples validate, worked ones run, and no policy or setting is missing."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import BeforeValidator

from orchestrator import plugins
from orchestrator.core.duration import parse_duration, show_duration
from orchestrator.core.lateprofile import LateProfile
from orchestrator.policy.build import GROUP, build, params_model
from orchestrator.policy.guard import Budget
from orchestrator.policy.late import LateParams
from orchestrator.policy.params import RESERVED
from orchestrator.policy.profiles import PROFILES
from orchestrator.router.policies import KEPT

TEXT = (Path(__file__).parents[2] / "docs" / "policies.md").read_text()
SECTIONS = dict(re.findall(r"^### `([\w-]+)`\n(.*?)(?=^##)", TEXT, re.DOTALL | re.MULTILINE))


def blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def file_after(name, language):
    """The first block of `language` after the file is named."""
    return blocks(TEXT[TEXT.index(f"`{name}`") :], language)[0]


def table(text):
    """The first two columns of the tables of parameters in `text`."""
    return dict(re.findall(r"^\| `(\w+)` \| `?([^|`]+)`? \|", text, re.MULTILINE))


def defaults(model):
    """A model's fields with their defaults as the tables have them."""
    told = {}
    for name, field in model.model_fields.items():
        duration = BeforeValidator(parse_duration) in field.metadata
        default = show_duration(field.default) if duration else field.default
        if isinstance(default, dict):
            default = "{" + ", ".join(f"{show_duration(k)}: {v}" for k, v in default.items()) + "}"
        told[name] = "none" if default is None else str(default)
    return told


def test_it_has_a_section_for_every_registered_policy_and_no_other():
    assert set(SECTIONS) == set(plugins.known(GROUP))


@pytest.mark.parametrize("name", SECTIONS)
def test_each_policys_example_validates_and_shows_it(name):
    (example,) = blocks(SECTIONS[name], "yaml")
    assert f"use: {name}" in example
    shown = yaml.safe_load(example)
    assert build({"mode": "late", **shown} if "order" in shown else {"unified": shown})


@pytest.mark.parametrize("name", SECTIONS)
def test_each_policys_parameters_are_listed_with_their_defaults(name):
    listed = table(SECTIONS[name])
    model = params_model(name, plugins.resolve(GROUP, name))
    assert listed == (defaults(model) if model else {})
    assert not RESERVED & set(listed)


def test_every_setting_of_late_binding_is_listed_with_its_default():
    late = TEXT[TEXT.index("### Late\n") : TEXT.index("### Units")]
    assert table(late) == defaults(LateParams)


def test_every_shipped_profile_is_listed_with_its_mode():
    listed = dict(re.findall(r"^\| `([\w-]+)` \| (immediate|late) \|", TEXT, re.MULTILINE))
    assert listed == {name: profile["mode"] for name, profile in PROFILES.items()}


def test_the_budget_and_the_requests_kept_are_what_they_are():
    assert f"A call may take {Budget().call_s * 1e3:g} ms" in TEXT
    assert f"left out for {Budget().cooldown_s:g} s" in TEXT
    assert f"the last {KEPT} requests" in TEXT


@pytest.mark.parametrize("at", [0, 1])
def test_the_opening_examples_build(at):
    section = yaml.safe_load(blocks(TEXT, "yaml")[at])["scheduling"]
    profile = build(section["profiles"][section["profile"]])
    assert isinstance(profile, LateProfile) is bool(at)


@pytest.mark.parametrize(
    ("policy", "topology", "profiles", "tests"),
    [
        ("tenant_affinity.py", "tenants.yaml", 2, 4),
        ("maintenance.py", "careful.yaml", 1, 2),
        ("hardware_cost.py", "thrifty.yaml", 1, 3),
    ],
)
def test_the_worked_examples_load_and_their_tests_pass(tmp_path, policy, topology, profiles, tests):
    test = f"test_{policy}"
    for name, language in ((policy, "python"), (topology, "yaml"), (test, "python")):
        (tmp_path / name).write_text(file_after(name, language))
    section = yaml.safe_load((tmp_path / topology).read_text())["scheduling"]
    assert section["profile"] in section["profiles"]
    assert len(section["profiles"]) == profiles
    assert all(build(profile, tmp_path) for profile in section["profiles"].values())
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{tests} passed" in done.stdout
