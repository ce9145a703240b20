"""vLLM's HTTP API, as of 0.32.0, over a simulated engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson

from orchestrator.sim import text
from orchestrator.sim.calls import BadCall, Call, chat_call, completion_call
from orchestrator.sim.dialect import Routes, empty, limits, make_generations, model_card, read_json
from orchestrator.sim.encode import vllm_chat
from orchestrator.sim.generation import Generation
from orchestrator.sim.host import Host, answer
from orchestrator.sim.options import SimOptions
from orchestrator.sim.replies import Failure, Reply, Shape
from orchestrator.sim.timing import Link
from orchestrator.sim.vllm_mooncake import MooncakeSide
from orchestrator.sim.vllm_nixl import NixlSide
from orchestrator.sim.vllm_pages import VERSION, event_sources, metrics
from orchestrator.sim.vllm_shapes import ChatShape, CompletionShape, error_object
from orchestrator.wire.exchange import Exchange

INTERNAL = "Internal server error"
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
METRICS_TYPE = ((b"content-type", b"text/plain; version=1.0.0; charset=utf-8"),)
SCALE_OUT = Failure(
    403,
    "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them.",
    "PermissionDeniedError",
)
DEATH_S = 0.05
"""Real seconds between the last answer of an engine that is dying and its end."""


def link(options: SimOptions) -> Link:
    """NIXL pulls once prefill is over; Mooncake pushes meanwhile."""
    return replace(options.link, overlaps=options.transfer != "nixl")


class VllmDialect:
    """The routes, and the calls in flight."""

    generating = frozenset(("/v1/completions", "/v1/chat/completions"))

    def __init__(self, host: Host) -> None:
        options = host.options
        self._host = host
        self._calls: set[Reply] = set()
        self._nixl: NixlSide | None = None
        self._mooncake: MooncakeSide | None = None
        if options.role in ("prefill", "decode"):
            if options.transfer == "nixl":
                self._nixl = NixlSide(host, self._fail, self._dead)
            else:
                self._mooncake = MooncakeSide(host, self._fail)
            host.engine.transfer = self._nixl or self._mooncake
        self._shapes: dict[str, Shape] = {
            "/v1/completions": CompletionShape(options.cache_report),
            "/v1/chat/completions": ChatShape(options.cache_report),
        }
        version = {"version": VERSION, **options.tells.get("version", {})}
        self.routes: Routes = {
            ("POST", "/v1/completions"): self._reader(completion_call),
            ("POST", "/v1/chat/completions"): self._reader(chat_call),
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("GET", "/health"): empty,
            ("GET", "/ping"): empty,
            ("POST", "/ping"): empty,
            ("GET", "/version"): lambda x: answer(x, 200, orjson.dumps(version)),
            ("GET", "/v1/models"): self._models,
            ("GET", "/load"): self._load,
            ("GET", "/kv_event_sources"): lambda x: answer(x, 200, orjson.dumps(event_sources(host))),
            ("GET", "/metrics"): lambda x: answer(x, 200, metrics(host), METRICS_TYPE),
        }
        if options.role == "encode":
            name = options.served_model_name
            self.routes[("POST", "/v1/chat/completions")] = lambda x: vllm_chat(host, x, name)
        for path in (
            "/inference/v1/generate", "/v1/completions/render", "/v1/chat/completions/render",
            "/v1/completions/derender", "/v1/chat/completions/derender",
        ):  # fmt: skip
            self.routes[("POST", path)] = lambda x: answer(x, 403, self.error_body(SCALE_OUT))

    async def start(self) -> None:
        """The connectors' ports."""
        for side in (self._nixl, self._mooncake):
            if side is not None:
                await side.start()

    def close(self) -> None:
        """Let go of peers."""
        for side in (self._nixl, self._mooncake):
            if side is not None:
                side.close()

    def ports(self) -> dict[str, int]:
        """The connector's port."""
        if self._nixl is not None:
            return {"side channel": self._nixl.port}
        if self._mooncake is not None and self._mooncake.bootstrap_port:
            return {"bootstrap": self._mooncake.bootstrap_port}
        return {}

    def state(self) -> dict[str, Any]:
        """The engine id peers know it by."""
        side = self._nixl or self._mooncake
        return {"engine_id": side.engine_id} if side is not None else {}

    def open_to_all(self, path: str) -> bool:
        """Only the OpenAI paths need a key."""
        return not path.startswith(("/v1", "/inference"))

    def error_body(self, failure: Failure) -> bytes:
        """`{"error": {...}}`."""
        return orjson.dumps({"error": error_object(failure)})

    # -- generating ---------------------------------------------------------------------------------

    def _reader(self, read: Callable[[dict[str, Any]], Call]) -> Callable[[Exchange], None]:
        def handle(exchange: Exchange) -> None:
            try:
                body = read_json(exchange)
            except ValueError as error:
                failure = Failure(400, str(error), "BadRequestError")
                answer(exchange, 400, self.error_body(failure))
                return
            params = body.get("kv_transfer_params")
            try:
                self._check_model(body)
                call = read(body)
                self._check(call)
            except Failure as failure:
                self._refuse(exchange, failure, params)
            except BadCall as bad:
                self._refuse(exchange, _bad_request(bad), params)
            else:
                self._begin(exchange, call, params if isinstance(params, dict) else {})

        return handle

    def _refuse(self, exchange: Exchange, failure: Failure, params: Any) -> None:
        """A refused decode leg frees the KV it was given."""
        if self._nixl is not None and isinstance(params, dict) and params.get("do_remote_prefill"):
            self._nixl.notify(params)
        answer(exchange, failure.status, self.error_body(failure))

    def _check_model(self, body: dict[str, Any]) -> None:
        name, served = body.get("model"), self._host.options.served_model_name
        if name is not None and name != served:
            message = f"The model `{name}` does not exist. Valid aliases: {served}."
            raise Failure(404, message, "NotFoundError", "model")

    def _check(self, call: Call) -> None:
        longest = self._host.options.max_model_len
        for prompt, limit, params in zip(call.prompts, limits(self._host, call), call.params, strict=True):
            n = len(prompt)
            if params.max_tokens is not None and params.max_tokens > longest:
                raise Failure(
                    400,
                    f"max_tokens={limit} cannot be greater than max_model_len={longest}. Please request "
                    f"fewer output tokens. (parameter=max_tokens, value={limit})",
                    "BadRequestError", "max_tokens",
                )  # fmt: skip
            if n + max(1, limit) > longest:
                asked = max(1, limit)
                raise Failure(
                    400,
                    f"This model's maximum context length is {longest} tokens. However, you requested "
                    f"{asked} output tokens and your prompt contains at least {n} input tokens, for a "
                    f"total of at least {n + asked} tokens. Please reduce the length of the input prompt "
                    f"or the number of requested output tokens. (parameter=input_tokens, value={n})",
                    "BadRequestError", "input_tokens",
                )  # fmt: skip

    def _begin(self, exchange: Exchange, call: Call, params: dict[str, Any]) -> None:
        host = self._host
        shape = self._shapes[exchange.path]
        given = exchange.header(b"x-request-id")
        request_id = given.decode("latin-1") if given else host.hexid(16)
        prefix = "chatcmpl" if call.kind == "chat" else "cmpl"
        count = len(call.prompts) * call.n
        middle = [""] * count if call.kind == "chat" else [f"-{i}" for i in range(count)]
        names = [f"{prefix}-{request_id}{part}-{host.hexid(8)}" for part in middle]
        reply = Reply(
            exchange, call, shape, host.engine, f"{prefix}-{request_id}", host.created(),
            call.model or host.options.served_model_name,
        )  # fmt: skip
        generations = make_generations(host, reply, names)
        self._calls.add(reply)
        host.calls += 1
        reply.on_done = lambda: self._over(reply)
        if host.draining:
            for gen in generations:
                gen.done = "abort"
                reply.flush(gen)
            return
        reply.watch()
        for gen in generations:
            self._admit(gen, params)

    def _admit(self, gen: Generation, params: dict[str, Any]) -> None:
        if self._nixl is not None and params.get("do_remote_decode"):
            self._nixl.lease(gen)
        elif self._nixl is not None and params.get("do_remote_prefill"):
            self._nixl.pull(gen, params)
        elif self._mooncake is not None and params.get("do_remote_decode"):
            self._mooncake.produce(gen, str(params.get("transfer_id")))
        elif self._mooncake is not None and params.get("do_remote_prefill"):
            self._mooncake.consume(gen, params)
        else:
            self._host.engine.admit(gen)

    def _over(self, reply: Reply) -> None:
        self._host.calls -= 1
        self._calls.discard(reply)

    def _fail(self, gen: Generation) -> None:
        """A hand-off has failed."""
        if gen.done is None and isinstance(gen.owner, Reply):
            gen.owner.fail(Failure(500, INTERNAL))

    def _dead(self, gen: Generation) -> None:
        """An assertion in the engine: the request is told, and the server goes."""
        if isinstance(gen.owner, Reply):
            gen.owner.fail(Failure(500, ENGINE_DEAD))
        self._host.later(
            DEATH_S * self._host.clock.speed, lambda: self._host.die("AssertionError in EngineCore")
        )

    # -- probes and pages ---------------------------------------------------------------------------

    def _models(self, exchange: Exchange) -> None:
        permission = {
            "id": f"modelperm-{self._host.hexid(16)}", "object": "model_permission",
            "created": self._host.created(), "allow_create_engine": False, "allow_sampling": True,
            "allow_logprobs": True, "allow_search_indices": False, "allow_view": True,
            "allow_fine_tuning": False, "organization": "*", "group": None, "is_blocking": False,
        }  # fmt: skip
        card = model_card(self._host, "vllm", root=self._host.options.model_path, permission=[permission])
        answer(exchange, 200, orjson.dumps({"object": "list", "data": [card]}))

    def _load(self, exchange: Exchange) -> None:
        count = self._host.calls if self._host.options.load_tracking else 0
        answer(exchange, 200, orjson.dumps({"server_load": count}))

    def _tokenize(self, exchange: Exchange) -> None:
        body = read_json(exchange)
        if "messages" in body:
            tokens = text.encode(text.chat_prompt(body["messages"]))
        else:
            tokens = text.encode(str(body.get("prompt", "")))
        answer(
            exchange, 200,
            orjson.dumps(
                {
                    "count": len(tokens), "max_model_len": self._host.options.max_model_len,
                    "tokens": tokens, "token_strs": None,
                }
            ),
        )  # fmt: skip

    def _detokenize(self, exchange: Exchange) -> None:
        answer(exchange, 200, orjson.dumps({"prompt": text.decode(read_json(exchange).get("tokens", []))}))

    def terminate(self) -> None:
        """Abort what runs and go; or with a time-out drain it, leases included, refusing what is new."""
        host = self._host
        host.draining = True
        if not host.options.shutdown_timeout_s:
            self._abort_all()
            return
        host.after(host.options.shutdown_timeout_s, self._abort_all)
        self._leave_if_idle()

    def _leave_if_idle(self) -> None:
        if self._host.engine.generations or self._calls:
            self._host.later(0.2, self._leave_if_idle)
        else:
            self._host.leave()

    def _abort_all(self) -> None:
        for reply in tuple(self._calls):
            for gen in reply.generations:
                if gen.done is None:
                    self._host.engine.cancel(gen)
                    gen.done = "abort"
                    with contextlib.suppress(RuntimeError):
                        reply.flush(gen)
        self._host.leave()


def _bad_request(bad: BadCall) -> Failure:
    message = bad.message
    if bad.param == "prompt" and bad.missing:
        message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
    return Failure(400, message, "BadRequestError", bad.param)
