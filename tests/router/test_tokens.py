"""Tokens of prompts by an engine's tokenizer: asked once, conversations by their tails (tokentails)."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from orchestrator.core.kvblocks import token_chain
from orchestrator.core.kvindex import KvIndex
from orchestrator.core.types import PathKind, RequestView
from orchestrator.engines.kvevents import pack
from orchestrator.engines.splice import JsonBody
from orchestrator.engines.vllm import VLLM
from orchestrator.router import tokentails
from orchestrator.router.tokens import Tokens
from orchestrator.router.view import prompt_of
from orchestrator.sim import text
from orchestrator.wire.client import Pool
from orchestrator.wire.server import serve

SIZE = 16


def message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


class Engine:
    """A server that only tokenizes: by the simulator's template, or by one that looks back."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.counts_turns = False
        self.delay_s = 0.0
        self.status = 200

    async def start(self) -> None:
        self.server = await serve(self._answer, host="127.0.0.1", port=0)

    def _answer(self, exchange: Any) -> None:
        body = orjson.loads(exchange.body)
        self.asked.append(body)
        told = orjson.dumps({"tokens": self.tokens(body)})
        loop = asyncio.get_running_loop()
        loop.call_later(self.delay_s, exchange.respond, self.status, told)

    def tokens(self, body: Any) -> list[int]:
        if "messages" not in body:
            return text.encode(body["prompt"])
        mark = f"turns {len(body['messages'])} " if self.counts_turns else ""
        tools = str(body.get("tools", ""))
        return text.encode(tools + mark + text.chat_prompt(body["messages"]))


class State:
    """An endpoint that is ready."""

    def __init__(self, engine: Engine) -> None:
        self.ready, self.engine = True, VLLM()
        self.plan = type(
            "Plan", (), {"model": "m", "name": "e0", "url": f"http://127.0.0.1:{engine.server.port}"}
        )


class Registry:
    """Of the registry, what is read."""

    def __init__(self, *states: State) -> None:
        self._states = states

    def states(self) -> tuple[State, ...]:
        return self._states

    def on_change(self, callback: Callable[[], None]) -> None:
        """Nothing changes."""


class Asker:
    """Tokens over one engine, and what came of each request."""

    def __init__(self, engine: Engine, *states: State) -> None:
        self.engine = engine
        self.index = KvIndex(seed=3)
        self.index.open("e0", SIZE, None)
        self.pool = Pool(connect_timeout_s=2.0)
        self.tokens = Tokens(Registry(*states), self.index, self.pool, lambda: frozenset(("m",)))  # type: ignore[arg-type]
        self.tokens.within_s = 20.0
        self._number = 0

    async def ask(self, kind: PathKind = PathKind.CHAT, **fields: Any) -> RequestView:
        body = JsonBody(orjson.dumps({"model": "m", **fields}))
        prompt = prompt_of(kind, body)
        self._number += 1
        view = RequestView(f"r{self._number}", "m", kind, 0.0, prompt.tokens, 5)
        told: asyncio.Future[RequestView] = asyncio.get_running_loop().create_future()
        self.tokens.find(view, body, prompt, told.set_result)
        return await asyncio.wait_for(told, 30)

    def right(self, view: RequestView, tokens: list[int]) -> bool:
        packed = pack(tokens)
        assert packed is not None
        return view.chains == {SIZE: token_chain(3, packed, SIZE)} and view.prompt_tokens == len(tokens)

    async def chat(self, *messages: dict[str, str], **more: Any) -> RequestView:
        view = await self.ask(messages=list(messages), **more)
        assert self.right(view, self.engine.tokens({"messages": list(messages), **more}))
        return view


@pytest.fixture
async def engine():
    made = Engine()
    await made.start()
    yield made
    made.server.close()


@pytest.fixture
async def asker(engine: Engine):
    made = Asker(engine, State(engine))
    yield made
    made.tokens.close()
    made.pool.close()


SYSTEM = message("system", "you answer in one word " * 20)


def talk(turns: int) -> list[dict[str, str]]:
    found = [SYSTEM]
    for n in range(turns):
        found += [message("user", f"question {n} " * 15), message("assistant", f"answer {n} " * 5)]
    return found[:-1]


async def test_a_long_conversation_costs_its_tail(asker: Asker, engine: Engine) -> None:
    for turns in (1, 2, 3, 4):
        engine.asked.clear()
        await asker.chat(*talk(turns))
        sizes = [len(orjson.dumps(body["messages"])) for body in engine.asked]
        if turns > 1:
            assert max(sizes) < 500, "the beginning is not sent again"
        assert len(engine.asked) <= 2
    assert asker.tokens.counts["joined"] == 3
    assert asker.tokens.counts["asked"] == 4


async def test_the_same_prompt_is_remembered_and_asked_once(asker: Asker, engine: Engine) -> None:
    await asyncio.gather(asker.chat(*talk(1)), asker.chat(*talk(1)))
    await asker.chat(*talk(1))
    assert len(engine.asked) == 1
    assert asker.tokens.counts["known"] == 1


async def test_tools_are_sent_with_the_whole_only(asker: Asker, engine: Engine) -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "d " * 50}}]
    await asker.chat(*talk(1), tools=tools)
    engine.asked.clear()
    await asker.chat(*talk(2), tools=tools)
    assert asker.tokens.counts["joined"] == 1
    assert not any("tools" in body for body in engine.asked)


async def test_a_template_that_changes_the_past_is_found_out_by_the_stand_in(
    asker: Asker, engine: Engine
) -> None:
    engine.counts_turns = True
    await asker.chat(*talk(1))
    view = await asker.ask(messages=talk(2))
    assert asker.tokens.counts["joined"] == 0, "the stand-in shows that what is in front changes"
    assert asker.right(view, engine.tokens({"messages": talk(2)}))


async def test_a_count_that_differs_ends_joining_for_the_model(asker: Asker, engine: Engine) -> None:
    await asker.chat(*talk(1))
    view = await asker.chat(*talk(2))
    asker.tokens.counted(view.id, "m", view.prompt_tokens, view.prompt_tokens)
    view = await asker.chat(*talk(3))
    assert asker.tokens.counts["joined"] == 2
    asker.tokens.counted(view.id, "m", view.prompt_tokens, view.prompt_tokens + 1)
    engine.asked.clear()
    await asker.chat(*talk(3))
    await asker.chat(*talk(4))
    assert asker.tokens.counts["joined"] == 2
    assert [body["messages"] for body in engine.asked] == [talk(3), talk(4)]


async def test_what_is_late_is_remembered_for_the_next_time(asker: Asker, engine: Engine) -> None:
    asker.tokens.within_s, engine.delay_s = 0.0, 0.05
    view = await asker.ask(messages=talk(1))
    assert view.chains is None
    assert asker.tokens.counts["late"] == 1
    asker.tokens.within_s = 20.0
    await asker.chat(*talk(1))
    assert len(engine.asked) == 1


async def test_an_engine_that_fails_costs_nothing_but_exactness(asker: Asker, engine: Engine) -> None:
    engine.status = 500
    assert (await asker.ask(messages=talk(1))).chains is None
    assert asker.tokens.counts["failed"] == 1


async def test_without_anybody_to_ask_requests_go_on(engine: Engine) -> None:
    asker = Asker(engine)
    assert (await asker.ask(messages=talk(1))).chains is None
    assert (await asker.ask(PathKind.COMPLETION, prompt=["a", "b"])).chains is None
    assert asker.tokens.counts["unknown"] == 2
    asker.pool.close()


def test_where_a_conversation_can_be_cut() -> None:
    def cut(*roles: str, **more: Any) -> list[int]:
        return list(tokentails.cuts({"messages": [message(role, "x") for role in roles], **more}))

    assert cut("system", "user", "assistant", "user") == [2]
    assert cut("user", "assistant", "user", "assistant", "user") == [3, 1]
    assert cut("user", "assistant", "tool", "assistant", "user") == [3, 1]
    assert cut("user", "assistant", "assistant", "user") == [1]
    assert cut("user") == []
    assert cut("user", "assistant", "user", continue_final_message=True) == []
    assert cut("user", "assistant", "user", add_generation_prompt=False) == []
    assert list(tokentails.cuts({"messages": "x"})) == []


def test_joining_needs_a_template_that_goes_on() -> None:
    assert tokentails.join(b"head", b"ab", b"abcd") == b"headcd"
    assert tokentails.join(b"head", b"ab", b"xbcd") is None


async def test_tokens_of_prompts_that_may_go_in_slices_are_kept_while_they_last(
    asker: Asker, engine: Engine
) -> None:
    """They are wanted whether anybody tells of a cache or not, and are let go of with the request."""
    asker.index.close("e0")
    short = RequestView("s", "m", PathKind.COMPLETION, 0.0, 10, 5)
    assert not asker.tokens.wanted(short)
    asker.tokens.sliced = lambda view: view.prompt_tokens > 100
    assert not asker.tokens.wanted(short)
    prompt = "a long prompt " * 100
    view = await asker.ask(PathKind.COMPLETION, prompt=prompt)
    assert asker.tokens.wanted(view)
    assert view.parts
    assert asker.tokens.of(view.id) == pack(text.encode(prompt))
    asker.tokens.counted(view.id, "m", view.prompt_tokens, None)
    assert asker.tokens.of(view.id) is None
    whole = await asker.ask(PathKind.COMPLETION, prompt="short")
    assert not whole.parts
    assert asker.tokens.of(whole.id) is None
