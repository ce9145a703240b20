"""The resolver: the three spellings, what a user is told when one fails, and that nothing is shadowed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import plugins
from orchestrator.errors import PluginError, TopologyError

POLICIES = "pdctl.policies"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def refusal(reference: str, base_dir: Path | str = ".", group: str = POLICIES) -> str:
    with pytest.raises(PluginError) as caught:
        plugins.resolve(group, reference, base_dir)
    assert isinstance(caught.value, TopologyError)
    return str(caught.value)


def test_a_registered_name():
    policy = plugins.resolve(POLICIES, "max-score")
    assert isinstance(policy, type)
    assert policy.__name__ == "MaxScore"


def test_known_lists_what_is_registered():
    assert {"max-score", "kv-capacity", "prefix-affinity"} <= set(plugins.known(POLICIES))
    assert list(plugins.known(POLICIES)) == sorted(plugins.known(POLICIES))
    assert plugins.known("pdctl.nothing") == ()


def test_an_installed_module():
    assert plugins.resolve(POLICIES, "collections:OrderedDict.fromkeys") is not None
    assert plugins.resolve("pdctl.engines", "pathlib:Path") is Path


def test_a_file_is_found_beside_the_topology_or_anywhere(tmp_path):
    write(tmp_path / "mine.py", "class Mine: pass\n")
    here = plugins.resolve(POLICIES, "./mine.py:Mine", tmp_path)
    assert here.__name__ == "Mine"
    assert plugins.resolve(POLICIES, "mine.py:Mine", tmp_path) is here
    assert plugins.resolve(POLICIES, f"{tmp_path}/mine.py:Mine", "/") is here
    assert plugins.resolve(POLICIES, "../mine.py:Mine", tmp_path / "below") is here


def test_an_unchanged_file_gives_the_same_class_and_a_changed_one_another(tmp_path):
    file = write(tmp_path / "mine.py", "class Mine: answer = 1\n")
    first = plugins.resolve(POLICIES, "./mine.py:Mine", tmp_path)
    assert plugins.resolve(POLICIES, "./mine.py:Mine", tmp_path) is first
    write(file, "class Mine: answer = 2\n")  # same size, same second: what a cache of bytecode would miss
    assert plugins.resolve(POLICIES, "./mine.py:Mine", tmp_path).answer == 2
    assert first.answer == 1


def test_two_files_of_one_name_do_not_meet(tmp_path):
    for folder in ("a", "b"):
        write(tmp_path / folder / "mine.py", f"class Mine: folder = {folder!r}\n")
    a, b = (plugins.resolve(POLICIES, f"./{f}/mine.py:Mine", tmp_path) for f in "ab")
    assert (a.folder, b.folder) == ("a", "b")


def test_a_file_may_define_dataclasses_and_models(tmp_path):
    text = (
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\n"
        "from orchestrator.policy import Params\n"
        "class P(Params):\n    others: list[Other] = []\n"
        "@dataclass(slots=True)\nclass Other:\n    x: int = 0\n"
    )
    write(tmp_path / "mine.py", text)
    assert plugins.resolve(POLICIES, "./mine.py:Other", tmp_path)().x == 0


def test_a_file_is_compiled_as_it_is_written(tmp_path):
    """And not with the `from __future__` imports of the module that compiles it."""
    write(tmp_path / "mine.py", "def f(x: int): pass\n")
    assert plugins.resolve(POLICIES, "./mine.py:f", tmp_path).__annotations__ == {"x": int}


def test_loading_leaves_no_trace_in_the_users_folder(tmp_path):
    write(tmp_path / "mine.py", "class Mine: pass\n")
    plugins.resolve(POLICIES, "./mine.py:Mine", tmp_path)
    assert os.listdir(tmp_path) == ["mine.py"]


@pytest.mark.parametrize(
    ("reference", "says"),
    [
        ("max-scor", ["no plug-in named 'max-scor' in pdctl.policies", "did you mean 'max-score'?"]),
        ("zzz", ["no plug-in named 'zzz'", "known: ", "kv-capacity"]),
        ("./mine.py", ["a file reference names the class too: ./mine.py:ClassName"]),
        ("no_such_module:X", ["there is no module 'no_such_module'", "./file.py:Class"]),
        ("collections.abd:X", ["there is no module 'collections.abd'", "'collections' was found at"]),
        ("collections:OrderedDic", ["defines no 'OrderedDic'", "did you mean 'OrderedDict'?"]),
        ("./missing.py:X", ["cannot read", "missing.py", "relative to the topology's folder"]),
        (".:X", ["no plug-in named"]),
        ("", ["no plug-in named ''"]),
    ],
)
def test_a_reference_that_leads_nowhere_says_where_to_look(reference, says, tmp_path):
    text = refusal(reference, tmp_path)
    for part in says:
        assert part in text


def test_an_empty_group_asks_whether_pdctl_is_installed():
    assert "is pdctl itself installed" in refusal("x", group="pdctl.nothing")


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("x = 1\nraise ValueError('no good')\n", 2, "ValueError: no good"),
        ("class A:\n  x = (\n", 2, "SyntaxError"),
        ("\n\nimport no_such_thing_at_all\n", 3, "No module named 'no_such_thing_at_all'"),
        ("def f():\n    return {}['k']\nf()\n", 2, "KeyError: 'k'"),
        ("raise SystemExit('bye')\n", 1, "SystemExit: bye"),
        ("import json\njson.loads('{')\n", 2, "JSONDecodeError"),
    ],
)
def test_a_file_that_does_not_load_is_blamed_by_line(text, line, says, tmp_path):
    file = write(tmp_path / "bad.py", text)
    for _ in range(2):  # nothing half-loaded is left behind
        with pytest.raises(PluginError) as caught:
            plugins.resolve(POLICIES, "./bad.py:X", tmp_path)
        (problem,) = caught.value.problems
        assert (problem.file, problem.line) == (str(file), line)
        assert says in problem.message


def test_a_module_that_fails_inside_blames_what_it_imports(tmp_path):
    write(tmp_path / "outer_plugin_mod.py", "import inner_that_is_missing\n")
    code = (
        "from orchestrator import plugins\n"
        "from orchestrator.errors import PluginError\n"
        "try: plugins.resolve('g', 'outer_plugin_mod:X')\n"
        "except PluginError as e: print(e)\n"
    )
    out = run_python(code, tmp_path, PYTHONPATH=str(tmp_path))
    assert "outer_plugin_mod.py:1" in out
    assert "No module named 'inner_that_is_missing'" in out


def run_python(code: str, cwd: Path, **env: str) -> str:
    """What `python -P -c code` prints in `cwd`, where pdctl's own processes would start."""
    root = str(Path(plugins.__file__).parents[1])
    paths = [env.pop("PYTHONPATH", ""), root]
    full = {**os.environ, **env, "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=cwd, env=full, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_users_folder_named_policies_does_not_shadow_ours(tmp_path):
    write(tmp_path / "policies" / "__init__.py", "raise RuntimeError('the wrong policies')\n")
    write(tmp_path / "policies" / "tenant.py", "class Tenant: pass\n")
    write(tmp_path / "orchestrator" / "__init__.py", "raise RuntimeError('the wrong orchestrator')\n")
    code = (
        "from orchestrator import plugins\n"
        "print(plugins.resolve('pdctl.policies', 'max-score').__module__)\n"
        "print(plugins.resolve('pdctl.policies', './policies/tenant.py:Tenant').__name__)\n"
        "print(plugins.resolve('pdctl.policies', 'kv-capacity').__module__)\n"
    )
    assert run_python(code, tmp_path).split() == [
        "policies.pickers.max_score",
        "Tenant",
        "policies.filters.kv_capacity",
    ]


def test_one_that_does_shadow_ours_is_named(tmp_path):
    write(tmp_path / "policies" / "__init__.py", "")
    code = (
        "from orchestrator import plugins\n"
        "from orchestrator.errors import PluginError\n"
        "try: plugins.resolve('pdctl.policies', 'max-score')\n"
        "except PluginError as e: print(e)\n"
    )
    out = run_python(code, tmp_path, PYTHONPATH=str(tmp_path))
    assert f"'policies' was found at {tmp_path}/policies/__init__.py" in out


def test_a_name_that_two_packages_claim_is_refused(tmp_path):
    for package, target in (("one", "json:loads"), ("two", "json:dumps")):
        info = tmp_path / f"{package}-1.0.dist-info"
        write(info / "METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        write(info / "entry_points.txt", f"[pdctl.test]\nsame = {target}\nown-{package} = {target}\n")
    code = (
        "from orchestrator import plugins\n"
        "from orchestrator.errors import PluginError\n"
        "print(plugins.resolve('pdctl.test', 'own-one').__name__)\n"
        "try: plugins.resolve('pdctl.test', 'same')\n"
        "except PluginError as e: print(e)\n"
    )
    out = run_python(code, tmp_path, PYTHONPATH=str(tmp_path))
    assert out.startswith("loads\n")
    assert "'same' is registered twice" in out
    assert "json:loads (one)" in out
    assert "json:dumps (two)" in out


def test_nearest():
    assert plugins.nearest("prefil", ("prefill", "decode")) == "prefill"
    assert plugins.nearest("xyz", ("prefill", "decode")) is None
