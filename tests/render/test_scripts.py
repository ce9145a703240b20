"""Shell scripts, run for real: simulated engines and the router, by nothing but what was rendered."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from deployment import GUARD_S, MODEL, Deployment, eventually, sim
from portshare import free_ports

from orchestrator.render import files
from orchestrator.render.scripts import render

Made = Callable[..., files.Deployment]


def texts(deployment: files.Deployment) -> dict[str, str]:
    return {f.path: f.text for f in render(deployment)}


def test_a_script_for_each_process_and_for_each_node(made: Made) -> None:
    found = texts(made())
    assert set(found) == {
        *("env.example", "lib.sh", "start-a.sh", "start-b.sh"),
        *("run/prefill-0.sh", "run/decode-0.sh", "run/decode-0.1.sh", "run/router.sh"),
    }
    assert "begin decode-0.1" in found["start-a.sh"]
    assert "begin decode-0 " not in found["start-a.sh"]
    assert (
        found["env.example"].endswith("CLIENT_KEY=\nENGINE_KEY=\n") or "ENGINE_KEY=\n" in found["env.example"]
    )


def test_no_key_is_in_any_file(made: Made) -> None:
    text = "".join(texts(made()).values())
    assert "an-engine-key" not in text
    assert "a-client-key" not in text


def test_the_router_is_stopped_first_and_further_processes_last(made: Made) -> None:
    start = texts(made())["start-a.sh"]
    order = [start.index(word) for word in ("term router", "term prefill-0", 'term "$name"')]
    assert order == sorted(order)


def test_scripts_are_sound_and_pass_words_on_as_they_are(made: Made, tmp_path: Path) -> None:
    deployment = made()
    files.write(render(deployment), tmp_path / "out")
    for path in (tmp_path / "out").rglob("*.sh"):
        subprocess.run(["bash", "-n", path], check=True)
    script = (tmp_path / "out" / "run" / "prefill-0.sh").read_text()
    # What would be run, shown by a program of that name.
    fake = tmp_path / "out" / "show.sh"
    fake.write_text(
        script.replace("exec /usr/bin/python3", 'exec printf \'%s\\n\' "$WORDS" "$SGLANG_HOST_IP"')
    )
    env = {"PATH": os.environ["PATH"], "ENGINE_KEY": "k e'y", "PDCTL_ADDRESS_A": "10.9.9.9"}
    done = subprocess.run(["sh", fake], env=env, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[:2] == ["it's $5 $(x)", "10.9.9.9"]
    assert lines[lines.index("--host") + 1] == "10.9.9.9"
    assert lines[lines.index("--api-key") + 1] == "k e'y"
    del env["ENGINE_KEY"]
    done = subprocess.run(["sh", fake], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode != 0, "ENGINE_KEY" in done.stderr) == (True, True)


def test_files_are_written_before_the_process_that_reads_them(
    made: Made, with_files: str, tmp_path: Path
) -> None:
    deployment = made(with_files)
    out = tmp_path / "elsewhere"
    files.write(render(deployment), out)
    script = out / "run" / "prefill-0.sh"
    script.write_text(script.read_text().replace("exec /usr/bin/python3", "exec printf '%s\\n'"))
    env = {"PATH": os.environ["PATH"]}
    done = subprocess.run(["sh", script], env=env, capture_output=True, text=True, check=True)
    words = done.stdout.splitlines()
    (path, text), *_ = deployment.plan.instances[0].files.items()
    there = out / "files" / Path(path).name
    assert words[words.index("--disaggregation-ib-device") + 1] == str(there)
    assert there.read_text().strip() == text.strip()
    # A second rendering finds its own files.
    files.write(render(deployment), out)


@pytest.mark.integration
def test_what_was_rendered_serves_and_stops_in_order(tmp_path: Path) -> None:
    first = free_ports(20)
    nodes = [{"name": "here", "ports": f"{first}-{first + 19}"}]
    keys = {"credentials": {"client_keys": ["${env:CLIENT_KEY}"], "engine_key": "${env:ENGINE_KEY}"}}
    made = Deployment(tmp_path / "d", {"p": sim("prefill"), "d": sim("decode")}, nodes=nodes, router=keys)
    made.env |= {"CLIENT_KEY": "a-client-key", "ENGINE_KEY": "an-engine-key"}
    out = tmp_path / "out"
    done = made.pdctl("render", "--to", "shell", "--out", str(out))
    assert done.returncode == 0, done.stderr
    (out / "env").write_text("CLIENT_KEY=a-client-key\nENGINE_KEY=an-engine-key\n")
    env = {k: v for k, v in made.env.items() if k not in ("CLIENT_KEY", "ENGINE_KEY")}
    started = subprocess.Popen([out / "start-here.sh"], env=env, stdout=subprocess.PIPE, text=True)
    try:
        eventually(lambda: _ready(made.url), lambda: (out / "logs" / "router.log").read_text())
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        path = "/v1/chat/completions"
        assert made.client.post(path, json=body).status_code == 401
        key = {"authorization": "Bearer a-client-key"}
        assert made.client.post(path, json=body, headers=key).status_code == 200
    finally:
        started.send_signal(signal.SIGTERM)
        said, _ = started.communicate(timeout=GUARD_S)
    assert started.returncode == 0
    stopped = [line.partition(":")[0] for line in said.splitlines() if line.endswith(": stopped")]
    assert stopped == ["router", "p-0", "d-0"]
    made.client.close()


@pytest.mark.integration
def test_one_that_ends_takes_the_others_along_and_is_named(tmp_path: Path) -> None:
    first = free_ports(20)
    made = Deployment(
        tmp_path / "d",
        {"p": sim("prefill", flags={"faults": "/no/such/file"}), "d": sim("decode")},
        nodes=[{"name": "here", "ports": f"{first}-{first + 19}"}],
    )
    out = tmp_path / "out"
    assert made.pdctl("render", "--to", "shell", "--out", str(out)).returncode == 0
    done = subprocess.run(
        [out / "start-here.sh"], env=made.env, capture_output=True, text=True, timeout=GUARD_S, check=False
    )
    assert done.returncode == 1
    assert f"p-0 has ended; see {out}/logs/p-0.log" in done.stdout
    made.client.close()


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ready", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False
