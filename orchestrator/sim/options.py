"""The command line of one simulated engine, as frozen data."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.sim.timing import LINKS, Link

ANSWERS = ("server_info", "route", "models", "version", "cache_config")
"""Those of its answers in which it may tell something else than the truth."""

DIALECTS = ("sglang", "vllm")
ROLES = ("prefill", "decode", "unified", "encode")
TRANSFERS = {
    "sglang": ("mooncake", "mooncake_tcp"),
    "vllm": ("nixl", "mooncake"),
}


@dataclass(frozen=True, slots=True)
class SimOptions:
    """One instance. Durations are virtual seconds: at `speed` 10 the engine lives ten times as fast.

    `env` holds the environment that the real engine would read its time-outs from.
    """

    dialect: str = "sglang"
    role: str = "unified"
    host: str = "127.0.0.1"
    port: int = 0
    served_model_name: str = "sim"
    model_path: str = "sim"
    speed: float = 1.0
    seed: int = 0
    transfer: str = ""
    link: Link = LINKS["rdma"]
    bootstrap_port: int = 0
    side_channel_host: str = "127.0.0.1"
    side_channel_port: int = 0
    control_port: int | None = None
    kv_events_port: int | None = None
    kv_replay_port: int = 0
    page_size: int = 64
    kv_tokens: int = 350_000
    prefix_tokens: int | None = None
    chunk: int = 8192
    mixed: bool = False
    max_running: int = 256
    max_model_len: int = 40_960
    lease_s: float = 30.0
    optimistic_prefill: bool = False
    role_switch: bool = False
    recompute: bool = False
    api_key: str | None = None
    cache_report: bool = False
    load_tracking: bool = False
    faults: str | None = None
    tells: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    load_delay_s: float = 0.0
    shutdown_timeout_s: float = 0.0
    drain_poll_s: float = 0.2
    encoder_urls: tuple[str, ...] = ()
    nnodes: int = 1
    node_rank: int = 0
    dist_init_addr: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def env_s(self, name: str, default: float) -> float:
        """A duration that the real engine reads from the environment. Raises ValueError."""
        text = self.env.get(name)
        if text is None:
            return default
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"{name} is not a number of seconds: {text!r}") from None


def parser() -> argparse.ArgumentParser:
    """The argument parser; its help is the reference of every flag."""
    p = argparse.ArgumentParser(
        prog="python -m orchestrator.sim",
        description="A simulated LLM engine that speaks SGLang's or vLLM's HTTP dialect, and enforces their "
        "prefill/decode contracts as harshly as they do. All durations are virtual: divided by --speed.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    p.add_argument("--dialect", choices=DIALECTS, default="sglang", help="whose API and contracts to speak")
    p.add_argument("--role", choices=ROLES, default="unified", help="what the instance does for a request")
    p.add_argument("--host", default="127.0.0.1", help="address to listen on")
    p.add_argument("--port", type=int, default=0, help="HTTP port; 0: any free one, printed on stdout")
    p.add_argument("--served-model-name", default=None, help="the model's name (default: --model-path)")
    p.add_argument("--model-path", default="sim", help="only reported, never read")
    p.add_argument("--speed", type=_positive, default=1.0, help="virtual seconds per second of the wall")
    p.add_argument("--seed", type=int, default=0, help="keys block hashes, ids and fault dice; not the text")
    _transfer_flags(p)
    _size_flags(p)
    _rank_flags(p)
    p.add_argument("--api-key", default=None, help="key to demand as the real engine would")
    p.add_argument(
        "--enable-cache-report",
        "--enable-prompt-tokens-details",
        action="store_true",
        dest="cache_report",
        help="report cached tokens in usage",
    )
    p.add_argument(
        "--enable-server-load-tracking",
        action="store_true",
        dest="load_tracking",
        help="count requests in /load (vLLM)",
    )
    p.add_argument("--faults", default=None, help="fault script: inline JSON, or a file of it")
    p.add_argument(
        "--control-port",
        type=int,
        default=None,
        help="serve /sim/... on this port too, so that it answers while connections are refused",
    )
    p.add_argument("--load-delay-s", type=_natural, default=0.0, help="time before the API port opens")
    p.add_argument(
        "--shutdown-timeout",
        type=_natural,
        default=0.0,
        dest="shutdown_timeout_s",
        help="vLLM: drain that long on SIGTERM, in real seconds (0: abort what runs)",
    )
    p.add_argument(
        "--drain-poll-s",
        type=_positive,
        default=0.2,
        help="SGLang: how often, in real seconds, a draining server looks whether it is idle (really: 5)",
    )
    return p


def _rank_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument("--nnodes", type=int, default=1, help="nodes that the engine spans, a process on each")
    p.add_argument("--node-rank", type=int, default=0, help="which of them this process is; 0 serves")
    p.add_argument("--dist-init-addr", default="", help="HOST:PORT where the processes meet, process 0's")


def _transfer_flags(p: argparse.ArgumentParser) -> None:
    every = sorted({name for names in TRANSFERS.values() for name in names})
    p.add_argument(
        "--transfer",
        choices=every,
        default=None,
        help="how KV travels (default: mooncake for sglang, nixl for vllm)",
    )
    p.add_argument(
        "--link",
        choices=sorted(LINKS),
        default=None,
        help="what it travels over (default: tcp for mooncake_tcp, else rdma)",
    )
    p.add_argument(
        "--bootstrap-port",
        type=int,
        default=0,
        help="bootstrap server of an SGLang prefill or a vLLM Mooncake producer; 0: any free one",
    )
    p.add_argument(
        "--side-channel-host",
        default=None,
        help="vLLM NIXL: address to give to peers (default: VLLM_NIXL_SIDE_CHANNEL_HOST, else --host)",
    )
    p.add_argument(
        "--side-channel-port",
        type=int,
        default=None,
        help="vLLM NIXL (default: VLLM_NIXL_SIDE_CHANNEL_PORT, else any free one)",
    )
    p.add_argument("--lease-s", type=_positive, default=30.0, help="vLLM: how long unpulled KV is held")
    p.add_argument(
        "--kv-load-failure-policy",
        choices=("fail", "recompute"),
        default="fail",
        help="vLLM decode: what to do when KV cannot be pulled",
    )
    p.add_argument("--optimistic-prefill", action="store_true",
                   help="SGLang: prefill before the decode side has been heard of")  # fmt: skip
    p.add_argument("--enable-pd-role-switch", action="store_true",
                   help="SGLang: let POST /pd_role_switch make prefill of decode, and back")  # fmt: skip
    p.add_argument(
        "--encoder-urls",
        nargs="*",
        default=[],
        help="SGLang: encode-only engines that this one, computing prompts, has images encoded by",
    )


def _size_flags(p: argparse.ArgumentParser) -> None:
    p.add_argument(
        "--kv-events-port",
        type=int,
        default=None,
        help="publish KV events over ZeroMQ on this port as the real engine does; 0: any free one",
    )
    p.add_argument("--kv-replay-port", type=int, default=0, help="where they are replayed; 0: any free port")
    p.add_argument(
        "--page-size",
        "--block-size",
        type=int,
        default=64,
        dest="page_size",
        help="tokens per KV block; equal on both sides of a pair",
    )
    p.add_argument(
        "--kv-tokens",
        type=int,
        default=None,
        help="KV memory (default: 700000 for prefill, 350000 otherwise)",
    )
    p.add_argument(
        "--prefix-tokens",
        type=int,
        default=None,
        help="how much of it the prefix cache may keep (default: all; SGLang decode: none)",
    )
    p.add_argument("--chunk", type=int, default=8192, help="tokens of a prefill chunk")
    p.add_argument(
        "--interference",
        choices=("mixed", "prefill-first"),
        default=None,
        help="mixed: a chunk and the running batch's decode share a step (default of vllm); "
        "prefill-first: decode waits (default of sglang)",
    )
    p.add_argument("--max-running", type=int, default=256, help="most requests computed at once")
    p.add_argument("--max-model-len", type=int, default=40_960, help="longest prompt plus output")
    p.add_argument(
        "--tells",
        default=None,
        help="what it says of itself in place of the truth: inline JSON of fields by answer "
        "(server_info, route, models, version, cache_config)",
    )


def parse(argv: Sequence[str], env: Mapping[str, str] = os.environ) -> SimOptions:
    """Options from the command line; exits with a usage message (status 2) when they do not fit together."""
    p = parser()
    a = p.parse_args(argv)
    dialect = a.dialect
    transfer = a.transfer or TRANSFERS[dialect][0]
    if transfer not in TRANSFERS[dialect]:
        p.error(f"--transfer {transfer}: {dialect} knows {', '.join(TRANSFERS[dialect])}")
    kv_tokens = a.kv_tokens or (700_000 if a.role == "prefill" else 350_000)
    if a.page_size < 1 or kv_tokens < a.page_size:
        p.error("--kv-tokens must hold at least one block of --page-size")
    prefix = a.prefix_tokens
    if prefix is None and dialect == "sglang" and a.role == "decode":
        prefix = 0
    interference = a.interference or ("mixed" if dialect == "vllm" else "prefill-first")
    side_port = a.side_channel_port
    if side_port is None:
        side_port = int(env.get("VLLM_NIXL_SIDE_CHANNEL_PORT", "0"))
    side_host = a.side_channel_host or env.get("VLLM_NIXL_SIDE_CHANNEL_HOST") or a.host
    bootstrap = a.bootstrap_port or int(env.get("VLLM_MOONCAKE_BOOTSTRAP_PORT", "0"))
    if a.encoder_urls and (dialect != "sglang" or a.role not in ("prefill", "unified")):
        p.error("--encoder-urls: only sglang has them, where it computes prompts")
    try:
        tells = _answers(a.tells or "{}")
    except ValueError as error:
        p.error(f"--tells {error}")
    if not 0 <= a.node_rank < a.nnodes or (a.nnodes > 1) != bool(a.dist_init_addr):
        p.error("--node-rank is below --nnodes, and several nodes need --dist-init-addr HOST:PORT")
    return SimOptions(
        dialect=dialect, role=a.role, host=a.host, port=a.port,
        served_model_name=a.served_model_name or a.model_path, model_path=a.model_path,
        speed=a.speed, seed=a.seed, transfer=transfer,
        link=LINKS[a.link or ("tcp" if transfer == "mooncake_tcp" else "rdma")],
        bootstrap_port=bootstrap, side_channel_host=side_host, side_channel_port=side_port,
        control_port=a.control_port, kv_events_port=a.kv_events_port, kv_replay_port=a.kv_replay_port,
        page_size=a.page_size, kv_tokens=kv_tokens, prefix_tokens=prefix,
        chunk=a.chunk, mixed=interference == "mixed", max_running=a.max_running,
        # No sequence may be longer than the memory; the real engines refuse or clamp likewise.
        max_model_len=min(a.max_model_len, kv_tokens // a.page_size * a.page_size),
        lease_s=a.lease_s, optimistic_prefill=a.optimistic_prefill, role_switch=a.enable_pd_role_switch,
        recompute=a.kv_load_failure_policy == "recompute", api_key=a.api_key, cache_report=a.cache_report,
        load_tracking=a.load_tracking, faults=a.faults, tells=tells, load_delay_s=a.load_delay_s,
        shutdown_timeout_s=a.shutdown_timeout_s, drain_poll_s=a.drain_poll_s,
        encoder_urls=tuple(a.encoder_urls), nnodes=a.nnodes, node_rank=a.node_rank,
        dist_init_addr=a.dist_init_addr, env=dict(env),
    )  # fmt: skip


def _answers(text: str) -> dict[str, dict[str, object]]:
    try:
        told = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None
    if not isinstance(told, dict) or not all(isinstance(fields, dict) for fields in told.values()):
        raise ValueError("is no mapping of answers to fields")
    if unknown := sorted(set(told) - set(ANSWERS)):
        raise ValueError(f"knows {', '.join(ANSWERS)}, not {', '.join(unknown)}")
    return told


def _positive(text: str) -> float:
    value = float(text)
    if value <= 0:
        raise argparse.ArgumentTypeError("must be greater than 0")
    return value


def _natural(text: str) -> float:
    value = float(text)
    if value < 0:
        raise argparse.ArgumentTypeError("must not be negative")
    return value
