"""Launch profiles: found by name or path, extended, different by role; each setting with its origin."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.types import Role
from orchestrator.topology.planner import shipped_roots
from orchestrator.topology.profiles import Finder, ProfileFile, known_profiles

BASE = """\
description: Base.
gpus: false
transfer: slow
ready_timeout: 5m
max_restarts: 2
env: {A: "1", B: "2"}
flags:
  depth: 1
  config: {x: 1, y: {a: 1}}
roles:
  decode:
    flags: {depth: 2}
    drain_timeout: 3s
"""

FAST = """\
description: Fast.
extends: fake/base
transfer: fast
env: {B: "3"}
flags:
  config: {y: {b: 2}}
  width: 7
"""


def test_layers_go_over_each_other_with_origins(site, pair: str) -> None:
    site.profile("fake/base", BASE)
    site.profile("fake/fast", FAST)
    plan = site.plan(
        pair, "pools.decode.profile=fast", "pools.prefill.profile=fast", "pools.decode.flags.width=8"
    )
    decode, prefill = plan.instance("decode-0"), plan.instance("prefill-0")
    assert "--depth 2" in site.argv(plan, "decode-0")
    assert "--depth 1" in site.argv(plan, "prefill-0")
    assert '--config {"x":1,"y":{"a":1,"b":2}}' in site.argv(plan, "decode-0")
    assert "--width 8" in site.argv(plan, "decode-0")
    assert "--transfer fast" in site.argv(plan, "decode-0")
    assert {name: word.text for name, word in decode.env.items() if name in "AB"} == {"A": "1", "B": "3"}
    origins = {w.text: w.origin for w in decode.argv}
    assert origins["--config"] == "profile fake/base.yaml:9 + profile fake/fast.yaml:6"
    assert origins["--depth"] == "profile fake/base.yaml:12"
    assert origins["--width"] == "topology --set"
    assert decode.env["B"].origin == "profile fake/fast.yaml:4"
    assert decode.profile == "fake/fast"
    assert (decode.probes.ready_timeout_s, decode.max_restarts, decode.drain_s) == (300, 2, 3)
    assert prefill.drain_s == 30


def test_the_pool_has_the_last_word(site, pair: str) -> None:
    site.profile("fake/base", BASE)
    site.profile("fake/default", "description: The same transfer.\ngpus: false\ntransfer: slow\n")
    plan = site.plan(
        pair.replace(
            "role: decode,", "role: decode, profile: base, flags: {depth: false, config: null},"
        ).replace(
            "decode, profile", "decode, ready_timeout: 9s, max_restarts: 0, drain_timeout: 0s, profile"
        ),
        "pools.decode.env={A: null}",
    )
    decode = plan.instance("decode-0")
    assert "--depth" not in site.argv(plan, "decode-0")
    assert "--config" not in site.argv(plan, "decode-0")
    assert "A" not in decode.env
    assert (decode.probes.ready_timeout_s, decode.max_restarts, decode.drain_s) == (9, 0, 0)


def test_json_text_is_merged_like_a_mapping(site, pair: str) -> None:
    site.profile("fake/base", BASE)
    plan = site.plan(
        pair,
        "pools.decode.profile=base",
        "pools.prefill.profile=base",
        """pools.decode.flags.config='{"z": 3}'""",
    )
    assert '--config {"x":1,"y":{"a":1},"z":3}' in site.argv(plan, "decode-0")


def test_null_takes_away_what_an_adapter_sets(site, pair: str) -> None:
    plan = site.plan(pair, "pools.decode.flags.host=null", "pools.decode.env.FAKE_HOST=null")
    assert "--host" not in site.argv(plan, "decode-0")
    assert "FAKE_HOST" not in plan.instance("decode-0").env


def test_profiles_of_ones_own_by_path(site, pair: str) -> None:
    site.profile("fake/base", BASE)
    (site.folder / "site").mkdir()
    (site.folder / "site" / "mine.yaml").write_text(
        "description: Mine.\nextends: ./deeper.yaml\nflags: {own: 1}\n"
    )
    (site.folder / "site" / "deeper.yaml").write_text("description: Deeper.\nextends: fake/base\n")
    plan = site.plan(pair, "pools.decode.profile=./site/mine.yaml", "pools.prefill.transfer=slow")
    assert "--own 1" in site.argv(plan, "decode-0")
    assert "--depth 2" in site.argv(plan, "decode-0")
    assert {w.text: w.origin for w in plan.instance("decode-0").argv}["--own"] == "profile mine.yaml:3"


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        (
            "bsae",
            "t.yaml:5: pools.decode.profile: there is no launch profile 'fake/bsae' (did you mean 'base'?)",
        ),
        ("zzz", "there is no launch profile 'fake/zzz' (known: base, default)"),
        ("other/base", "there is no launch profile 'other/base' (write ./file.yaml for one of your own)"),
        ("./none.yaml", "none.yaml: no such file"),
        (".", ": is a directory, not a file"),
        ("../t", "t: no such file"),
    ],
)
def test_what_is_not_found_is_told(site, pair: str, reference: str, expected: str) -> None:
    site.profile("fake/base", BASE)
    told = site.told(pair.replace("role: decode,", f"role: decode, profile: {reference},"))
    assert any(expected in line for line in told), told


def test_a_faulty_profile_is_told_at_its_own_line_once(site, pair: str) -> None:
    site.profile("fake/bad", "description: Bad.\nflgas: {a: 1}\nready_timeout: 3\nroles: {decoder: {}}\n")
    told = site.told(pair, "pools.decode.profile=bad", "pools.prefill.profile=bad")
    assert told == [
        "profiles/fake/bad.yaml:2: flgas: unknown field (did you mean 'flags'?)",
        "profiles/fake/bad.yaml:3: ready_timeout: 3 is not a duration; write a number with its unit, such as "
        "40ms or 1.5s",
        "profiles/fake/bad.yaml:4: roles.decoder: 'decoder' is not one of encode, prefill, decode, unified "
        "(did you mean 'decode'?)",
    ]


def test_profiles_that_extend_each_other_are_refused(site, pair: str) -> None:
    site.profile("fake/a", "description: A.\nextends: fake/b\n")
    site.profile("fake/b", "description: B.\n\nextends: fake/a\n")
    told = site.told(pair, "pools.decode.profile=a")
    assert told == ["profiles/fake/b.yaml:3: extends: 'fake/a' extends this profile in turn"]
    (site.folder / "loop.yaml").write_text("description: L.\nextends: ./x/../loop.yaml\n")
    told = site.told(pair, "pools.decode.profile=./loop.yaml")
    assert told == ["loop.yaml:2: extends: './x/../loop.yaml' extends this profile in turn"]


def test_a_base_that_is_not_there_is_told_at_extends(site, pair: str) -> None:
    site.profile("fake/a", "description: A.\nextends: fake/defautl\n")
    assert site.told(pair, "pools.decode.profile=a") == [
        "profiles/fake/a.yaml:2: extends: there is no launch profile 'fake/defautl' (did you mean 'default'?)"
    ]


def test_environment_is_not_looked_up_by_profiles(site, pair: str) -> None:
    site.environ = {"HOME_SECRET": "x"}
    site.profile("fake/a", "description: A.\nenv: {A: '${env:HOME_SECRET}'}\n")
    told = site.told(pair, "pools.decode.profile=a")
    assert "profiles/fake/a.yaml:2: env.A: the environment variable HOME_SECRET is not set" in told[0]


def test_an_untried_profile_is_warned_of(site, pair: str) -> None:
    site.profile("fake/new", "description: New.\ngpus: false\ntried: false\n")
    site.profile("fake/newer", "description: Newer.\nextends: fake/new\n")
    plan = site.plan(pair, "pools.decode.profile=newer")
    assert "launch profile fake/newer is written from documentation and untried [untried]" in plan.warnings[0]


def test_every_shipped_profile_resolves_for_every_role() -> None:
    roots = shipped_roots()
    finder = Finder(roots, Path("/"))
    engines = sorted(
        {d.name for root in roots for d in root.iterdir() if d.is_dir() and known_profiles(roots, d.name)}
    )
    assert engines
    for engine in engines:
        assert "default" in known_profiles(roots, engine)
        for name in known_profiles(roots, engine):
            for role in Role:
                profile, problems = finder.find(name, engine, role)
                assert problems == [], name
                assert profile.ready_timeout_s


def test_every_number_of_a_shipped_profile_has_its_reason() -> None:
    """A profile without a comment beside its settings is a list of magic numbers."""
    for root in shipped_roots():
        for engine in root.iterdir():
            for file in engine.iterdir() if engine.is_dir() else ():
                if file.name.endswith(".yaml"):
                    lines = file.read_text().splitlines()
                    assert lines[0].startswith("# yaml-language-server: $schema="), file
                    assert sum(line.lstrip().startswith("#") for line in lines) > 1, file


def test_the_description_is_required() -> None:
    assert ProfileFile.model_fields["description"].is_required()
