"""A topology that is wrong: file, line, field and what to write; exit code 2, and nothing is begun."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from deployment import Deployment

pytestmark = pytest.mark.integration

GOOD = """\
name: demo
model: {path: m}
pools:
  prefill:
    role: prefill
    engine: sim
  decode:
    role: decode
    engine: sim
router:
  listen: 127.0.0.1:18000
"""

BAD: dict[str, tuple[str, tuple[str, ...]]] = {
    "not YAML": ("name: [\n", ("topology.yaml:", "is not valid YAML")),
    "several at once": (
        GOOD.replace("role: decode", "role: decod").replace("    engine: sim\n  dec", "    engin: sim\n  dec")
        + "  timeouts: {total: 5}\n",
        (
            "topology.yaml:6: pools.prefill.engin: unknown field (did you mean 'engine'?)",
            "topology.yaml:8: pools.decode.role: 'decod' is not one of",
            "(did you mean 'decode'?)",
            "topology.yaml:12: router.timeouts.total: 5 is not a duration",
            "problems",
        ),
    ),
    "an unknown engine": (
        GOOD.replace("engine: sim", "engine: sglan", 1),
        ("topology.yaml:6: pools.prefill.engine:", "'sglan'", "sglang"),
    ),
    "an engine that is not there": (
        GOOD.replace("engine: sim", "engine: ./mine.py:Engine", 1),
        ("topology.yaml:6: pools.prefill.engine:", "mine.py: No such file or directory"),
    ),
    "one role alone": (
        GOOD.replace("role: decode", "role: prefill"),
        ("topology.yaml:4: pools.prefill", "none for decode to hand off with", "[roles]"),
    ),
    "two dialects": (
        GOOD.replace("engine: sim\nrouter", "engine: sim\n    options: {dialect: vllm}\nrouter"),
        ("topology.yaml:9: pools.decode.engine: speaks vllm, pool prefill speaks sglang", "[one-protocol]"),
    ),
    "an unknown policy": (
        GOOD + "scheduling:\n  profile: a\n  profiles: {a: {prefill: {scorers: [{use: token-laod}]}}}\n",
        ("topology.yaml:14: scheduling.profiles.a.prefill.scorers.0", "token-laod", "token-load"),
    ),
    "no GPU left": (
        GOOD.replace("engine: sim", "engine: sglang\n    tp: 2", 1).replace("engine: sim", "engine: sglang"),
        ("topology.yaml:4: pools.prefill", "[placement]"),
    ),
    "a secret that is not set": (
        GOOD + "  credentials: {engine_key: \"${env:NO_SUCH_KEY}\"}\n",
        ("topology.yaml:12: router.credentials.engine_key: the environment variable NO_SUCH_KEY is not set",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_every_finding_has_its_place(deploy: Callable[..., Deployment], name: str) -> None:
    made = deploy()
    text, expected = BAD[name]
    made.file.write_text(text)
    # A key need be there only for what runs something with it.
    done = made.here("check") if "secret" not in name else made.pdctl("up", "--detach")
    assert done.returncode == 2, done.stderr
    assert not [piece for piece in expected if piece not in done.stderr], done.stderr
    assert "Traceback" not in done.stderr
    if name in ("not YAML", "several at once", "one role alone"):
        up = made.pdctl("up", "--detach")
        assert (up.returncode, up.stdout, up.stderr) == (2, "", done.stderr)
    assert not made.state.root.exists()


def test_what_is_set_has_its_place_too(deploy: Callable[..., Deployment]) -> None:
    made = deploy()
    for override, said in (
        ("pools.decode.instances=two", "--set pools.decode.instances: should be a whole number"),
        ("pools.decod.instances=2", "pools.decod"),
        ("nonsense", "--set nonsense: is not of the form a.b=value"),
    ):
        done = made.here("check", "--set", override)
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_no_file(deploy: Callable[..., Deployment]) -> None:
    made = deploy()
    made.file.unlink()
    for command in ("check", "up", "ps"):
        done = made.here(command)
        assert (done.returncode, done.stderr.strip()) == (2, f"{made.file}: no such file")
