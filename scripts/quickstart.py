"""The quickstart: brings up the example deployment, streams a completion, says where it went, stops it.

Every command is printed as it is run, so that each can be run again by hand.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
PDCTL = Path(sys.executable).with_name("pdctl")
TOPOLOGY = ROOT / "examples" / "quickstart.yaml"
PROMPT = "Explain in two sentences why prefill and decode want different machines."
RECORDED_S = 5.0
"""How long a request may take to be recorded: what became of it is written down once a second."""


def free(port: int) -> bool:
    """Whether nothing holds `port` on loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def planned(settings: Sequence[str]) -> dict[str, object]:
    """The plan of the example with these settings."""
    words = [str(PDCTL), "plan", str(TOPOLOGY), "--json", *settings]
    return dict(json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout))


def settings_for(port: int | None, state: Path | None) -> tuple[list[str], str]:
    """The overrides that keep the example off what is in use here, none if nothing is, and its URL."""
    settings = [] if state is None else ["--set", f"state_dir={state}"]
    wanted = port or 8000
    listen = next((p for p in (wanted, *range(18000, 18100, 2)) if free(p) and free(p + 1)), wanted)
    if listen != 8000:
        settings += ["--set", f"router.listen=127.0.0.1:{listen}"]
    for first in range(20000, 30000, 1000):
        node = f"nodes=[{{name: local, address: 127.0.0.1, ports: {first}-{first + 999}}}]"
        chosen = settings if first == 20000 else [*settings, "--set", node]
        plan = planned(chosen)
        if all(free(p) for instance in plan["instances"] for p in instance["ports"].values()):
            return chosen, plan["router"]["url"]
    raise SystemExit("quickstart: no free range of ports between 20000 and 30000")


def command(name: str, *words: str) -> list[str]:
    """A pdctl command on the example, as it can be typed in the project's folder."""
    return [str(PDCTL.relative_to(ROOT)), name, str(TOPOLOGY.relative_to(ROOT)), *words]


def show(words: Sequence[str]) -> None:
    """Print a command the way it is typed."""
    print(f"\n$ {shlex.join(words)}", flush=True)


def pdctl(name: str, *words: str) -> int:
    """Run one pdctl command, in the open; its exit code."""
    typed = command(name, *words)
    show(typed)
    return subprocess.run(typed, cwd=ROOT, check=False).returncode


def pieces(url: str, body: dict[str, object], ids: list[str]) -> Iterator[str]:
    """The text of a streamed chat completion, piece by piece; its request id goes to `ids`. Raises
    RuntimeError on an error event."""
    with httpx.stream("POST", url, json=body, timeout=60) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {answer.read().decode()}")
        ids.append(answer.headers["x-pdctl-request-id"])
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""


def stream(url: str) -> str:
    """Stream one chat completion to the terminal, with its first-token time; its request id."""
    model = httpx.get(f"{url}/v1/models", timeout=10).json()["data"][0]["id"]
    messages = [{"role": "user", "content": PROMPT}]
    body = {"model": model, "stream": True, "max_tokens": 48, "messages": messages}
    path = f"{url}/v1/chat/completions"
    show(["curl", "-N", path, "-H", "content-type: application/json", "-d", json.dumps(body)])
    print("< ", end="", flush=True)
    started, first, count = time.perf_counter(), None, 0
    ids: list[str] = []
    for piece in pieces(path, body, ids):
        if piece:
            first = first or time.perf_counter()
            count += 1
            print(piece, end="", flush=True)
    if first is None:
        raise RuntimeError("the stream ended without a token")
    first_ms, all_ms = 1000 * (first - started), 1000 * (time.perf_counter() - started)
    print(f"\n\n{count} pieces, the first after {first_ms:.0f} ms, all after {all_ms:.0f} ms")
    print(
        "The engines are simulated: the text is nonsense that depends on every prompt token. The processes,"
    )
    print("the prefill and decode legs and the hand-off of the KV cache between them are real.")
    return ids[0]


def explain(request: str, settings: Sequence[str]) -> None:
    """Say where the request went and why, once that is written down."""
    typed = command("explain", request, *settings)
    give_up_s = time.monotonic() + RECORDED_S
    while True:
        done = subprocess.run(typed, cwd=ROOT, check=False, capture_output=True, text=True)
        if done.returncode == 0 or time.monotonic() > give_up_s:
            show(typed)
            print(done.stdout or done.stderr, end="", flush=True)
            return
        time.sleep(0.2)


def main() -> int:
    """Run it; 0 when a completion came through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the deployment running")
    parser.add_argument("--port", type=int, help="port of the endpoint, if free (default 8000)")
    arguments = parser.parse_args()
    state = None if arguments.keep else Path(tempfile.mkdtemp(prefix="pdctl-quickstart-"))
    settings, url = settings_for(arguments.port, state)
    print(f"In {ROOT}:")
    code = 1
    try:
        code = pdctl("up", "--detach", *settings)
        if code == 0:
            request = stream(url)
            pdctl("ps", *settings)
            explain(request, settings)
    except (RuntimeError, httpx.HTTPError) as error:
        print(f"quickstart: the completion failed: {error}", file=sys.stderr)
        code = 1
    finally:
        if not arguments.keep or code:
            code = pdctl("down", *settings) or code
    if state is not None and code == 0:
        shutil.rmtree(state)
    elif state is not None:
        print(f"quickstart: it failed; what was written is in {state}", file=sys.stderr)
    elif code == 0:
        print(f"\nStill running at {url}. Stop it with:\n  {shlex.join(command('down', *settings))}")
    return code


if __name__ == "__main__":
    sys.exit(main())
