"""The routers that pdctl is compared with: how each is installed into a cache, and started over engines."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.contender import Contender
from benchmarks.mock import Engine
from benchmarks.native import CACHE
from benchmarks.processes import free_port

NGINX = "nginx"


@dataclass(frozen=True, slots=True)
class Peer:
    """A router from a Python package. `policies` has those whose rule one of pdctl's own profiles follows as
    well, by which a replay can tell beforehand which of them do best; `bootstrap`: it wants the bootstrap
    port of prefill engines."""

    name: str
    version: str
    engine: str
    start: Sequence[str]
    pair_flag: str
    bootstrap: bool
    quiet: Sequence[str]
    policies: Mapping[str, str] = field(default_factory=dict)

    @property
    def spec(self) -> str:
        """What is installed."""
        return f"{self.name}=={self.version}"

    def install(self, cache: Path = CACHE) -> Path:
        """The `bin` folder of its environment, made on first use. Raises CalledProcessError."""
        place = cache / self.spec
        marker = place / ".installed"
        if not marker.exists():
            print(f"installing {self.spec} into {place}", file=sys.stderr)
            subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
            python = str(place / "bin" / "python")
            subprocess.run([python, "-m", "pip", "install", "-q", self.spec], check=True)
            marker.touch()
        return place / "bin"

    def contender(
        self, engines: Sequence[Engine], policy: str, *, name: str = "", cache: Path = CACHE
    ) -> Contender:
        """It over these engines, prefill and decode or all unified."""
        port, binaries = free_port(), self.install(cache)
        words = [str(binaries / self.start[0]), *self.start[1:], "--host", "127.0.0.1", "--port", str(port)]
        words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(free_port())]
        words += [*self.quiet, "--policy", policy, *self.behind(engines)]
        return Contender(name or self.name, self.engine, port, tuple(words))

    def behind(self, engines: Sequence[Engine]) -> list[str]:
        """The words that name the engines."""
        if all(one.role == "unified" for one in engines):
            return ["--worker-urls", *(one.url for one in engines)]
        words = [self.pair_flag]
        for one in engines:
            words += [f"--{one.role}", one.url]
            if one.role == "prefill" and self.bootstrap:
                words.append(str(one.bootstrap_port))
        return words


_COMMON = {
    "cache_aware": "cache-aware", "power_of_two": "power-of-two", "round_robin": "round-robin",
    "random": "random",
}  # fmt: skip

PEERS = (
    Peer(
        "sglang-router", "0.3.2", "sglang", ("python", "-m", "sglang_router.launch_router"),
        "--pd-disaggregation", True, ("--log-level", "warn"), _COMMON,
    ),
    Peer(
        "smg", "1.13.0", "sglang", ("smg", "launch"),
        "--pd-disaggregation", True, ("--log-level", "warn"), {**_COMMON, "least_load": "least-tokens"},
    ),
    Peer(
        "vllm-router", "0.1.17", "vllm", ("vllm-router",),
        "--vllm-pd-disaggregation", False, ("--log-level", "warning"), _COMMON,
    ),
)  # fmt: skip


def peer(name: str) -> Peer:
    """By its name. Raises KeyError."""
    return {each.name: each for each in PEERS}[name]


def nginx_config(engines: Sequence[Engine], port: int, folder: Path) -> str:
    """One worker that passes bytes on, unbuffered, over connections that it keeps."""
    servers = " ".join(f"server 127.0.0.1:{one.port};" for one in engines if one.role != "prefill")
    temporary = " ".join(
        f"{what}_temp_path {folder}/nginx-{what};"
        for what in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return (
        f"worker_processes 1; daemon off; pid {folder}/nginx.pid; error_log stderr warn;\n"
        "events { worker_connections 4096; }\n"
        f"http {{ access_log off; keepalive_requests 1000000; client_max_body_size 0; {temporary}\n"
        f"upstream engines {{ {servers} keepalive 128; keepalive_requests 1000000; }}\n"
        f"server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass http://engines; "
        'proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; '
        "proxy_request_buffering off; } } }\n"
    )


def nginx(engines: Sequence[Engine], engine: str, folder: Path) -> Contender | None:
    """It as a plain proxy in front of the engines that answer: what passing bytes on costs at least. None if
    it is not installed."""
    found = shutil.which(NGINX)
    if found is None:
        return None
    port = free_port()
    config = folder / "nginx.conf"
    config.write_text(nginx_config(engines, port, folder))
    return Contender(NGINX, engine, port, (found, "-p", str(folder), "-c", str(config)))
