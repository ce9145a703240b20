"""SGLang's HTTP API, as of 0.5.23, over a simulated engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from orchestrator.sim import sglang_deaths, sglang_switch, text
from orchestrator.sim.calls import BadCall, Call, chat_call, completion_call, generate_call
from orchestrator.sim.dialect import Routes, empty, limits, make_generations, model_card, read_json
from orchestrator.sim.encode import Encoders, EncoderServer
from orchestrator.sim.generation import Generation
from orchestrator.sim.host import Host, answer
from orchestrator.sim.replies import Failure, Reply, Shape
from orchestrator.sim.sglang_decode import DecodeSide
from orchestrator.sim.sglang_pages import SECTIONS, Pages
from orchestrator.sim.sglang_prefill import PrefillSide
from orchestrator.sim.sglang_shapes import ChatShape, CompletionShape, GenerateShape
from orchestrator.wire.exchange import Exchange

PLAIN = ((b"content-type", b"text/plain; charset=utf-8"),)
DEFAULT_BOOTSTRAP_PORT = 8998
HEALTH_S = 1.0
"""The health probe generates a token and looks for it once a second."""

FLUSHED = (
    b"Cache flushed.\nPlease check backend logs for more details. "
    b"(When there are running or waiting requests, the operation will not be performed.)\n"
)
_SOURCE = (
    '\n\n  File "sglang/srt/entrypoints/http_server.py", line 1860, in {0}\n    POST {1} [{2}]'
)  # fmt: skip


class SglangDialect:
    """The routes, and the requests in flight by `rid`."""

    generating = frozenset(("/generate", "/v1/completions", "/v1/chat/completions", "/encode"))

    def __init__(self, host: Host) -> None:
        options = host.options
        self._host = host
        self._pages = Pages(host)
        self._calls: dict[str, Reply] = {}
        self._paused = False
        self._shapes: dict[str, Shape] = {}
        self._prefill: PrefillSide | None = None
        self._decode: DecodeSide | None = None
        bootstraps = options.role == "prefill" or (options.role == "decode" and options.role_switch)
        self._bootstrap = PrefillSide(host, self._fail) if bootstraps else None
        """Its bootstrap server is there whatever the role is now, if the role can be switched."""
        self._take_role()
        self.routes: Routes = {
            ("POST", "/generate"): self._reader(generate_call),
            ("POST", "/v1/completions"): self._reader(completion_call),
            ("POST", "/v1/chat/completions"): self._reader(chat_call),
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/abort_request"): self._abort,
            ("POST", "/pause_generation"): self._pause,
            ("POST", "/continue_generation"): self._continue,
            ("POST", "/pd_role_switch"): self._role_switch,
            ("GET", "/health"): self._health,
            ("GET", "/health_generate"): self._health,
            ("GET", "/ready"): self._ready,
            ("GET", "/ping"): self._ping,
            ("GET", "/v1/models"): self._models,
            ("GET", "/v1/loads"): self._loads,
            ("GET", "/metrics"): lambda x: answer(x, 200, self._pages.metrics(), PLAIN),
        }
        for method in ("GET", "POST"):
            self.routes[(method, "/flush_cache")] = self._flush
        for path in ("/model_info", "/get_model_info"):
            self.routes[("GET", path)] = lambda x: answer(x, 200, orjson.dumps(self._pages.model_info()))
        for path in ("/server_info", "/get_server_info"):
            self.routes[("GET", path)] = self._server_info
        self._encoders = Encoders(host)
        self._encoder = EncoderServer(host) if options.role == "encode" else None
        if self._encoder is not None:
            self.routes = self._encoder.routes

    def _take_role(self) -> None:
        """Be what the options say, which a switch of roles changes."""
        role, report = self._host.options.role, self._host.options.cache_report
        self._shapes = {
            "/generate": GenerateShape(report, role == "prefill"),
            "/v1/completions": CompletionShape(report, role == "prefill"),
            "/v1/chat/completions": ChatShape(report, role == "prefill"),
        }
        if self._decode is not None:
            self._decode.close()
        self._prefill = self._bootstrap if role == "prefill" else None
        self._decode = DecodeSide(self._host, self._fail) if role == "decode" else None
        self._host.engine.transfer = self._prefill or self._decode

    async def start(self) -> None:
        """The bootstrap server is there before the model is loaded."""
        if self._bootstrap is not None:
            await self._bootstrap.start()

    def close(self) -> None:
        """Let go of peers."""
        for side in (self._bootstrap, self._decode):
            if side is not None:
                side.close()
        self._encoders.close()

    def ports(self) -> dict[str, int]:
        """The bootstrap port of a prefill engine, or of one that can become one."""
        return {"bootstrap": self._bootstrap.bootstrap_port} if self._bootstrap is not None else {}

    def state(self) -> dict[str, Any]:
        """A prefill engine's rooms; what an encoder has done."""
        side = self._prefill or self._encoder
        return {} if side is None else dict(side.state())

    def open_to_all(self, path: str) -> bool:
        """Probes and metrics need no key."""
        return path.startswith(("/health", "/metrics", "/ready", "/ping"))

    def error_body(self, failure: Failure) -> bytes:
        """OpenAI's form."""
        return orjson.dumps(self._shapes["/v1/completions"].error(failure, None))

    # -- generating ---------------------------------------------------------------------------------

    def _reader(self, read: Callable[[dict[str, Any]], Call]) -> Callable[[Exchange], None]:
        def handle(exchange: Exchange) -> None:
            shape = self._shapes[exchange.path]
            try:
                body = read_json(exchange)
                lethal = sglang_deaths.cause(body, self._host.options.role)
                if lethal is not None:
                    self._host.die(lethal)
                    return
                call = read(body)
            except ValueError as error:
                self._invalid(exchange, shape, "json_invalid", ("body", 0), str(error), {})
            except BadCall as bad:
                if bad.missing and exchange.path != "/generate":
                    given = read_json(exchange)
                    self._invalid(exchange, shape, "missing", ("body", bad.param or ""), bad.message, given)
                else:
                    failure = Failure(400, bad.message, "BadRequestError")
                    answer(exchange, 400, orjson.dumps(shape.error(failure, None)))
            else:
                self._encoders.before(exchange, body, lambda: self._begin(exchange, call, shape))

        return handle

    def _invalid(
        self,
        exchange: Exchange,
        shape: Shape,
        kind: str,
        where: tuple[str | int, ...],
        why: str,
        given: object,
    ) -> None:
        detail = {"type": kind, "loc": where, "msg": why, "input": given}
        name = "openai_v1_chat_completions" if "chat" in exchange.path else "openai_v1_completions"
        body = {
            "object": "error",
            "message": f"1 validation error:\n  {detail}" + _SOURCE.format(name, exchange.path, detail),
            "type": "Bad Request", "param": None, "code": 400,
        }  # fmt: skip
        answer(exchange, 400, orjson.dumps(body))

    def _begin(self, exchange: Exchange, call: Call, shape: Shape) -> None:
        host = self._host
        rids = self._rids(call)
        model = call.model or host.options.served_model_name
        reply = Reply(exchange, call, shape, host.engine, rids[0], host.created(), model)
        try:
            self._check(call)
            for rid in rids:
                if rid in self._calls or rid in host.engine.generations:
                    raise Failure(400, f"Duplicate request ID detected: {rid}")
            rooms = self._rooms(call, rids)
            addresses = self._addresses(call)
        except Failure as failure:
            reply.fail(failure)
            return
        most = 1 if host.options.role == "prefill" else None
        generations = make_generations(host, reply, rids, most=most)
        reply.watch()
        for rid in {reply.id, *rids}:
            self._calls[rid] = reply
        host.calls += 1
        reply.on_done = lambda: self._over(reply, rids)
        if rooms is None:
            for gen in generations:
                host.engine.admit(gen)
        else:
            self._hand_off(call.n, generations, rooms, addresses)

    def _over(self, reply: Reply, rids: list[str]) -> None:
        self._host.calls -= 1
        for rid in {reply.id, *rids}:
            if self._calls.get(rid) is reply:
                del self._calls[rid]

    def _rids(self, call: Call) -> list[str]:
        count = len(call.prompts) * call.n
        given = call.body.get("rid")
        if isinstance(given, list) and len(given) == count:
            return [str(rid) for rid in given]
        first = str(given) if isinstance(given, str) and given else self._host.hexid()
        return [first, *(self._host.hexid() for _ in range(count - 1))]

    def _check(self, call: Call) -> None:
        """Refuse what does not fit the context. Raises Failure."""
        longest = self._host.options.max_model_len
        for prompt, limit, params in zip(call.prompts, limits(self._host, call), call.params, strict=True):
            n = len(prompt)
            if n >= longest:
                raise Failure(
                    400,
                    f"The input ({n} tokens) is longer than the model's context length ({longest} tokens).",
                )
            if params.max_tokens is not None and n + limit > longest:
                raise Failure(
                    400,
                    f"Requested token count exceeds the model's maximum context length of {longest} tokens. "
                    f"You requested a total of {n + limit} tokens: {n} tokens from the input messages and "
                    f"{limit} tokens for the completion. Please reduce the number of tokens in the input "
                    "messages or the completion to fit within the limit.",
                )

    def _rooms(self, call: Call, rids: list[str]) -> list[int] | None:
        """The bootstrap room of each prompt; None outside disaggregation. Raises Failure if there is none."""
        if self._prefill is None and self._decode is None:
            return None
        room = call.body.get("bootstrap_room")
        if isinstance(room, int):
            return [room + i for i in range(len(call.prompts))]
        if isinstance(room, list) and len(room) == len(call.prompts):
            return [int(one) for one in room]
        raise Failure(
            400,
            f"Invalid request: Disaggregated request received without bootstrap room id. req.rid={rids[0]!r}",
        )

    def _addresses(self, call: Call) -> list[tuple[str | None, int]]:
        """The bootstrap address of each prompt's prefill engine. Raises Failure."""
        hosts, ports = call.body.get("bootstrap_host"), call.body.get("bootstrap_port")
        count = len(call.prompts)
        each_host = hosts if isinstance(hosts, list) else [hosts] * count
        each_port = ports if isinstance(ports, list) else [ports] * count
        if len(each_host) != count or len(each_port) != count:
            raise Failure(400, "bootstrap_host and bootstrap_port do not match the batch")
        if not all(port is None or isinstance(port, int) for port in each_port):
            raise Failure(400, "bootstrap_port must be an integer")
        return [
            (None if host is None else str(host), DEFAULT_BOOTSTRAP_PORT if port is None else port)
            for host, port in zip(each_host, each_port, strict=True)
        ]

    def _hand_off(
        self, n: int, generations: list[Generation], rooms: list[int], addresses: list[tuple[str | None, int]]
    ) -> None:
        for number, (room, (host, port)) in enumerate(zip(rooms, addresses, strict=True)):
            samples = generations[number * n : (number + 1) * n]
            if self._prefill is not None:
                # All samples of a prompt share its room, so there is one transfer for them all.
                samples[0].twins = samples[1:]
                self._prefill.begin(samples[0], room, host)
            elif self._decode is not None and (n == 1 or host is None):
                self._decode.begin(samples[0], room, host, port)
            # With n > 1 the decode side waits for KV that nobody sends: for ever, as on the real engine.

    def _fail(self, gen: Generation, message: str) -> None:
        """A hand-off has failed."""
        owner = gen.owner
        if gen.done is None and isinstance(owner, Reply):
            owner.fail(Failure(500, message))

    def _abort(self, exchange: Exchange) -> None:
        body = orjson.loads(exchange.body or b"{}")
        everyone = bool(body.get("abort_all"))
        rid = body.get("rid")
        hit = [reply for name, reply in self._calls.items() if everyone or name == rid]
        for reply in dict.fromkeys(hit):
            self._abort_call(reply)
        empty(exchange)

    def _abort_call(self, reply: Reply) -> None:
        side = self._prefill or self._decode
        for gen in reply.generations:
            if gen.done is not None:
                continue
            if side is not None and (gen.hold or gen.produced == 0):
                reply.fail(Failure(500, side.aborted(gen)))
                return
            self._host.engine.cancel(gen)
            reply.flush(gen)

    # -- probes and pages ---------------------------------------------------------------------------

    def _health(self, exchange: Exchange) -> None:
        if self._host.draining:
            answer(exchange, 503, b"", ())
        else:
            self._host.later(HEALTH_S, lambda: empty(exchange))

    def _ready(self, exchange: Exchange) -> None:
        answer(exchange, 503 if self._host.draining or self._paused else 200, b"", ())

    def _ping(self, exchange: Exchange) -> None:
        answer(exchange, 503 if self._host.draining else 200, b"", ())

    def _models(self, exchange: Exchange) -> None:
        answer(exchange, 200, orjson.dumps({"object": "list", "data": [model_card(self._host, "sglang")]}))

    def _loads(self, exchange: Exchange) -> None:
        query = dict(part.partition("=")[::2] for part in exchange.query.decode("latin-1").split("&"))
        include = query.get("include", "all").replace("%2C", ",").split(",")
        if not SECTIONS.issuperset(include):
            answer(exchange, 500, b"Internal Server Error", PLAIN)
        elif query.get("format") == "prometheus":
            answer(exchange, 200, self._pages.loads_text(), PLAIN)
        else:
            answer(exchange, 200, orjson.dumps(self._pages.loads()))

    def _server_info(self, exchange: Exchange) -> None:
        port = self._bootstrap.bootstrap_port if self._bootstrap is not None else 0
        told = {**self._pages.server_info(port), **self._host.options.tells.get("server_info", {})}
        answer(exchange, 200, orjson.dumps(told))

    def _flush(self, exchange: Exchange) -> None:
        if self._host.engine.generations:
            answer(exchange, 400, FLUSHED.replace(b"Cache flushed.", b"Flush cache failed."), ())
        else:
            self._host.engine.model.memory.pool.flush()
            self._host.engine.catch_up()
            answer(exchange, 200, FLUSHED, ())

    def _pause(self, exchange: Exchange) -> None:
        self._paused = True
        self._host.clock.hold()
        self._host.engine.arm()
        answer(exchange, 200, b'{"message":"Generation paused successfully.","status":"ok"}')

    def _continue(self, exchange: Exchange) -> None:
        self._paused = False
        self._host.clock.go()
        self._host.engine.arm()
        answer(exchange, 200, b'{"message":"Generation continued successfully.","status":"ok"}')

    def _role_switch(self, exchange: Exchange) -> None:
        host, asked = self._host, orjson.loads(exchange.body or b"{}")
        old, refused = host.options.role, sglang_switch.refusal(host, asked)
        if not refused:
            host.options = replace(host.options, role=asked["new_role"])
            self._take_role()
            if self._prefill is not None:
                self._prefill.registered = True
        answer(exchange, 400 if refused else 200, sglang_switch.told(old, asked, refused))

    def _tokenize(self, exchange: Exchange) -> None:
        body = read_json(exchange)
        prompt = body.get("prompt", "")
        if isinstance(body.get("messages"), list):
            prompt = text.chat_prompt(body["messages"])
        if isinstance(prompt, list):
            tokens: Any = [text.encode(str(one)) for one in prompt]
            count: Any = [len(one) for one in tokens]
        else:
            tokens = text.encode(str(prompt))
            count = len(tokens)
        longest = self._host.options.max_model_len
        answer(exchange, 200, orjson.dumps({"tokens": tokens, "count": count, "max_model_len": longest}))

    def _detokenize(self, exchange: Exchange) -> None:
        tokens = read_json(exchange).get("tokens", [])
        answer(exchange, 200, orjson.dumps({"text": text.decode(tokens)}))

    def terminate(self) -> None:
        """Drain: probes say 503, requests are still served, and the process exits once it is idle."""
        self._host.draining = True
        self._host.after(self._host.options.drain_poll_s, self._leave_if_idle)

    def _leave_if_idle(self) -> None:
        if self._host.engine.generations or self._host.calls:
            self._host.after(self._host.options.drain_poll_s, self._leave_if_idle)
        else:
            self._host.leave()


def _is_room(value: object) -> bool:
    """Rooms are 63-bit numbers."""
    return isinstance(value, int) and 0 <= value < 1 << 63
