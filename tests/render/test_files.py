"""What every rendering starts from: processes of all nodes, with keys and addresses left open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.errors import LaunchError, TopologyError
from orchestrator.render.files import FILES, MARK, Deployment, File, Var, quoted, write

Made = Callable[..., Deployment]


def test_every_process_is_there_once_the_router_last(made: Made) -> None:
    found = made().processes()
    assert [(p.name, p.node, p.follows) for p in found] == [
        ("prefill-0", "a", ""),
        ("decode-0", "b", ""),
        ("decode-0.1", "a", "decode-0"),
        ("router", "a", ""),
    ]


def test_addresses_and_keys_are_left_open(made: Made) -> None:
    deployment = made()
    prefill, decode, follower, router = deployment.processes()
    assert prefill.env["SGLANG_HOST_IP"] == (Var("PDCTL_ADDRESS_A"),)
    words = list(follower.words)
    dist = words[words.index(("--dist-init-addr",)) + 1]
    assert dist[0] == Var("PDCTL_ADDRESS_B")
    assert words[words.index(("--api-key",)) + 1] == (Var("ENGINE_KEY"),)
    assert set(decode.variables) == {"PDCTL_ADDRESS_B", "ENGINE_KEY"}
    assert {"ENGINE_KEY", "CLIENT_KEY"} <= set(router.variables)
    assert ("nodes.1.address=", Var("PDCTL_ADDRESS_B")) in router.words


def test_only_whole_addresses_are_taken_for_a_nodes(made: Made) -> None:
    deployment = made()
    assert deployment.pieces("110.0.0.1 10.0.0.10 10.0.0.1.5") == ("110.0.0.1 10.0.0.10 10.0.0.1.5",)
    assert deployment.pieces("tcp://10.0.0.1:5") == ("tcp://", Var("PDCTL_ADDRESS_A"), ":5")


def test_a_key_without_a_variable_is_refused(made: Made) -> None:
    deployment = made()
    with pytest.raises(TopologyError, match="a key of x is written in the topology"):
        deployment.pieces("some-key", secret=True, where="x")


def test_words_are_quoted_for_a_shell() -> None:
    assert quoted(("it's $5",)) == "'it'\"'\"'s $5'"
    assert quoted(("http://", Var("A"), ":1")) == 'http://"${A}":1'
    assert quoted(("",)) == "''"


def test_files_of_others_are_not_overwritten(tmp_path: Path) -> None:
    files = [File("run/x.sh", f"# {MARK}\n", executable=True)]
    write(files, tmp_path)
    write(files, tmp_path)
    assert (tmp_path / "run" / "x.sh").stat().st_mode & 0o111
    (tmp_path / "run" / "x.sh").write_text("mine")
    with pytest.raises(LaunchError, match="is not a file that pdctl has rendered"):
        write(files, tmp_path)
    with pytest.raises(LaunchError, match=r"Not a directory|File exists"):
        write([File("run/x.sh/y", "")], tmp_path)


def test_files_that_up_would_write_are_named_by_a_variable(made: Made, with_files: str) -> None:
    first, *_ = made(with_files).processes()
    (name,) = first.files
    assert name.endswith("nics.json")
    word = next(word for word in first.words if Var(FILES) in word)
    assert word == (Var(FILES), f"/{name}")
    assert FILES in first.variables
