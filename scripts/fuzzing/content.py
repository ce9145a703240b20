"""What is in bodies, streams, engines' answers to our own calls, and topologies."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from fuzzing.target import splits
from orchestrator.core.types import PathKind, Role
from orchestrator.engines.sglang import SGLang
from orchestrator.engines.splice import JsonBody
from orchestrator.engines.vllm import VLLM
from orchestrator.errors import BadRequest, LegFailed, RequestError, TopologyError
from orchestrator.router.continuing import Lasting
from orchestrator.router.record import Record
from orchestrator.router.stream import Stream, unfit, usage
from orchestrator.router.view import Asked, check_depth, check_length, model_of, prompt_of, read
from orchestrator.topology.planner import plan_file
from orchestrator.wire.exchange import Exchange
from orchestrator.wire.reader import RequestHead

ENGINES = (SGLang(), VLLM())


def _streamed(pieces: Sequence[bytes]) -> tuple[Any, ...]:
    stream, out = Stream(), b""
    for piece in pieces:
        passed = stream.feed(piece)
        assert stream.begun or not passed
        assert passed.endswith((b"\n\n", b"\r\n\r\n")) or not passed
        out += passed
    refused = None if stream.refused is None else str(stream.refused)
    return out, stream.begun, stream.done, stream.engine_error, refused, stream.failed


class _Nobody:
    """A client that takes everything."""

    def send(self, data: bytes) -> None:
        pass

    def finished(self, keep: bool) -> None:
        pass

    def cut(self) -> None:
        pass


_HEAD = RequestHead("POST", b"/", (), http10=False, keep_alive=True)


def stream(data: bytes) -> None:
    """One reading of a stream, and no surprise where it is kept to go on elsewhere."""
    first = _streamed([data])
    for pieces in splits(data):
        assert _streamed(pieces) == first, pieces
    for kind, field in ((PathKind.CHAT, b'"messages":[]'), (PathKind.COMPLETION, b'"prompt":"x"')):
        body = JsonBody(b'{"model":"m","stream":true,"max_tokens":9,%b}' % field)
        lasting = Lasting(Exchange(_Nobody(), _HEAD, b"", "", True), Record("r", kind, 0.0), body)
        for piece in (first[0], first[0]):
            if piece:
                try:
                    lasting.events(0, (), piece)
                    lasting.rest(5)
                except LegFailed:
                    break
                lasting.resume()


def engine(data: bytes) -> None:
    """Whatever an engine answers to a call of ours or in place of an answer, it is read or refused."""
    for status in (200, 400, 500):
        for kind in (PathKind.CHAT, PathKind.GENERATE):
            unfit(kind, status, data)
        usage(data)
        for adapter in ENGINES:
            assert isinstance(adapter.map_error(status, data), RequestError)
            for name in adapter.discover(Role.PREFILL, {"bootstrap_port": 1}):
                with suppress(ValueError):
                    adapter.learn(name, status, data)
    for adapter in ENGINES:
        with suppress(ValueError):
            adapter.load(data, {}, 0.0)
        with suppress(LegFailed):
            adapter.merge(PathKind.GENERATE, data, data)


# -- what is in a body


def body(data: bytes) -> None:
    """A body is refused, or means to us what it means to any other parser, before and after our edits."""
    try:
        parsed = JsonBody(data)
    except BadRequest:
        return
    pairs = json.loads(data, object_pairs_hook=list, parse_constant=_never)
    assert len({name for name, _ in pairs}) == len(pairs), "a field twice"
    assert _same(json.loads(data), parsed.fields)
    names = list(parsed.fields)
    changed = b"".join(parsed.edit({"room": b"7", **dict.fromkeys(names[:1], b"[]")}, drop=names[1:2]))
    told = json.loads(changed)
    assert told.pop("room") == 7 or "room" in names
    kept = {n: v for n, v in parsed.fields.items() if n not in (*names[:2], "room")}
    assert _same({n: told[n] for n in kept}, kept)
    for name in names:
        assert _same(json.loads(parsed.text(name)), parsed.fields[name])
    try:
        check_depth(parsed, 16)
    except BadRequest:
        return
    for kind in PathKind:
        _viewed(kind, parsed)


def _viewed(kind: PathKind, parsed: JsonBody) -> None:
    try:
        model_of(parsed, ("m",))
        prompt = prompt_of(kind, parsed)
        check_length(prompt, 1000)
        read(kind, parsed, "m", prompt, 7, Asked("r", 0.0, None, None, {}))
    except RequestError:
        pass
    for adapter in ENGINES:
        for disaggregated in (False, True):
            try:
                adapter.check(kind, parsed, disaggregated, {"vocab_size": 1000})
                parts = adapter.split(kind, parsed, disaggregated)
                if adapter.serves(kind, Role.PREFILL, disaggregated) and parts is None:
                    assert adapter.rooms(kind, parsed) >= 1
            except RequestError:
                continue
            for part in parts or ():
                assert orjson.loads(part.raw) == part.fields


def _never(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def _same(one: Any, other: Any) -> bool:
    """Whether two parsers mean the same: a number beyond 64 bits is a float to one of them."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[n], other[n]) for n in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or math.isclose(one, other, rel_tol=1e-15) or math.isinf(one)
    return bool(one == other)


# -- a topology

_site: list[Path] = []


def _planned(file: Path) -> tuple[str, ...]:
    try:
        plan_file(file, environ={"HOME": "/home/me", "PDCTL_CLIENT_KEY": "a-client-key"})
    except TopologyError as error:
        return tuple(map(str, error.problems)) or ("nothing is said",)
    return ()


def topology(data: bytes) -> None:
    """A topology is planned, or refused with findings that name the file, and twice alike."""
    if not _site:
        _site.append(Path(tempfile.mkdtemp(prefix="pdctl-fuzz-")))
    file = _site[0] / "t.yaml"
    file.write_bytes(data)
    first = _planned(file)
    assert first != ("nothing is said",)
    assert _planned(file) == first
