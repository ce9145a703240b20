"""A stand-in for an engine: an HTTP server that gets ready late, and misbehaves as it is told.

python engine.py --port N [--ready-after S] [--hang-health] [--ignore-term] [--linger S]
    [--exit-after S --exit-code N] [--say TEXT] [--die-once FILE] [--children FILE] [--flood BYTES]
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLEEP = [sys.executable, "-I", "-S", "-c", "import signal, time\n%s\ntime.sleep(3600)"]


def sleeper(*, deaf: bool, **how: object) -> int:
    """A child that sleeps; deaf: it ignores TERM."""
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if deaf else ""
    return subprocess.Popen([*SLEEP[:-1], SLEEP[-1] % code], **how).pid


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ready-after", type=float, default=0.0)
    parser.add_argument("--hang-health", action="store_true")
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--linger", type=float, default=0.0)
    parser.add_argument("--exit-after", type=float)
    parser.add_argument("--exit-code", type=int, default=1)
    parser.add_argument("--say", default="loading weights")
    parser.add_argument("--die-once", metavar="FILE")
    parser.add_argument("--children", metavar="FILE")
    parser.add_argument("--flood", type=int, default=0)
    parser.add_argument("--key")
    given = parser.parse_args()
    start_s = time.monotonic()

    print(given.say, flush=True)
    if given.die_once and not os.path.exists(given.die_once):
        open(given.die_once, "w").close()
        sys.exit("dying this once")
    if given.children:
        bare = {"PATH": os.environ["PATH"]}
        pids = [
            sleeper(deaf=True),
            sleeper(deaf=True, start_new_session=True),
            sleeper(deaf=True, env=bare),
            sleeper(deaf=True, start_new_session=True, env=bare),
        ]
        with open(given.children, "w") as file:
            file.write(" ".join(map(str, pids)))

    def on_term(*_: object) -> None:
        if not given.ignore_term:
            time.sleep(given.linger)
            os._exit(0)

    signal.signal(signal.SIGTERM, on_term)
    if given.exit_after is not None:
        threading.Timer(given.exit_after, os._exit, (given.exit_code,)).start()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if given.key and self.headers.get("Authorization") != f"Bearer {given.key}":
                return self.answer(401)
            if self.path == "/health" and given.hang_health:
                time.sleep(3600)
            ready = time.monotonic() - start_s >= given.ready_after
            return self.answer(200 if ready or self.path == "/health" else 503)

        def answer(self, status: int) -> None:
            body = f"{os.getpid()}\n".encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    for _ in range(given.flood // 100):
        print("x" * 99)
    sys.stdout.flush()
    ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()


main()
