"""A stand-in for the router: listens at once, is ready when every instance of its plan is, notes every hint.

python router.py --state DIR --port N
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser()
parser.add_argument("--state", required=True)
parser.add_argument("--port", type=int, required=True)
given = parser.parse_args()
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def note(text: str) -> None:
    with open(os.path.join(given.state, "hints"), "a") as file:
        file.write(text + "\n")


def ready() -> bool:
    with open(os.path.join(given.state, "plan.json")) as file:
        urls = [instance["url"] for instance in json.load(file)["instances"]]
    try:
        for url in urls:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{url}/ready", timeout=5)
    except OSError:
        return False
    return True


class Handler(BaseHTTPRequestHandler):
    def address_string(self) -> str:
        return "peer"

    def do_GET(self) -> None:
        self.answer(200 if self.path == "/health" or ready() else 503)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        note(" ".join([self.path.removeprefix("/"), *(str(body[k]) for k in sorted(body.keys() - {"by"}))]))
        self.answer(200)

    def answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


class Unix(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        os.chdir(given.state)
        if os.path.exists("router.sock"):
            os.unlink("router.sock")
        self.socket.bind("router.sock")
        self.server_name, self.server_port = "router", 0


threading.Thread(target=Unix("router.sock", Handler).serve_forever, daemon=True).start()
ThreadingHTTPServer(("127.0.0.1", given.port), Handler).serve_forever()
