"""The quickstart: brings up the example deployment, streams a completion through it, stops it."""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parent.parent
PDCTL = Path(sys.executable).with_name("pdctl")
TOPOLOGY = ROOT / "examples" / "quickstart.yaml"
PROMPT = "Explain in two sentences why prefill and decode want different machines."


def free(port: int) -> bool:
    """Whether nothing holds `port` on loopback."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def settings_for(port: int, state: Path) -> list[str]:
    """Overrides that keep the example off every port in use here: the endpoint's and the engines' own."""
    listen = next((p for p in (port, *range(18000, 18100, 2)) if free(p) and free(p + 1)), port)
    chosen = [f"router.listen=127.0.0.1:{listen}", f"state_dir={state}"]
    for first in range(20000, 30000, 1000):
        node = f"nodes=[{{name: local, address: 127.0.0.1, ports: {first}-{first + 999}}}]"
        overrides = [word for setting in (*chosen, node) for word in ("--set", setting)]
        words = [str(PDCTL), "plan", str(TOPOLOGY), "--json", *overrides]
        planned = json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout)
        if all(free(p) for instance in planned["instances"] for p in instance["ports"].values()):
            return overrides
    raise SystemExit("quickstart: no free range of ports between 20000 and 30000")


def pdctl(command: str, settings: list[str]) -> int:
    """Run one pdctl command on the example, in the open; its exit code."""
    words = [str(PDCTL), command, str(TOPOLOGY), *settings]
    shown = f"pdctl {command} {TOPOLOGY.relative_to(ROOT)}" + (" --detach" if "--detach" in settings else "")
    print(f"\n$ {shown}", flush=True)
    return subprocess.run(words, check=False).returncode


def pieces(url: str, body: dict[str, object]) -> Iterator[str]:
    """The text of a streamed chat completion, piece by piece; raises RuntimeError on an error event."""
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=60) as answer:
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {answer.read().decode()}")
        for line in answer.iter_lines():
            if not line.startswith("data: ") or line == "data: [DONE]":
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(event["error"]["message"])
            for choice in event["choices"]:
                yield choice["delta"].get("content") or ""


def stream(url: str) -> None:
    """Stream one chat completion to the terminal, with its first-token time."""
    model = httpx.get(f"{url}/v1/models", timeout=10).json()["data"][0]["id"]
    body = {
        "model": model,
        "stream": True,
        "max_tokens": 48,
        "messages": [{"role": "user", "content": PROMPT}],
    }
    print(f"\n$ curl {url}/v1/chat/completions   (streamed)\n> {PROMPT}\n< ", end="", flush=True)
    started, first, count = time.perf_counter(), None, 0
    for piece in pieces(url, body):
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


def main() -> int:
    """Run it; 0 when a completion came through."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", action="store_true", help="leave the deployment running")
    parser.add_argument("--port", type=int, default=8000, help="port of the endpoint, if free (default 8000)")
    arguments = parser.parse_args()
    state = Path.home() / ".local" / "state" / "pdctl" / "quickstart"
    if not arguments.keep:
        state = Path(tempfile.mkdtemp(prefix="pdctl-quickstart-"))
    settings = settings_for(arguments.port, state)
    url = f"http://{settings[1].partition('=')[2]}"
    code = 1
    try:
        code = pdctl("up", [*settings, "--detach"])
        if code == 0:
            stream(url)
            pdctl("ps", settings)
    except (RuntimeError, httpx.HTTPError) as error:
        print(f"quickstart: the completion failed: {error}; see pdctl logs", file=sys.stderr)
        code = 1
    finally:
        if not arguments.keep or code:
            code = pdctl("down", settings) or code
    if arguments.keep and code == 0:
        print(f"\nStill running at {url}. Stop it with:")
        print(f"  .venv/bin/pdctl down examples/quickstart.yaml --set state_dir={state}")
    return code


if __name__ == "__main__":
    sys.exit(main())
