"""Routers that go by simulated engines' KV events, over real sockets: kvwatch, kvside and tokens together."""

import asyncio
import contextlib
from dataclasses import replace

import httpx
import pytest

from orchestrator.core.kvevents import BlocksStored
from orchestrator.engines.kvevents import pack
from orchestrator.router.serve import Router
from orchestrator.sim.testing import SimProcess
from orchestrator.topology.planner import plan_file

MODEL = "m"
PAGE = 64
GUARD_S = 30.0
TEXT = "the quick brown fox jumps over a lazy dog while it rains and nobody knows why"
WORDS = TEXT.split()


def words(n, seed=0):
    return " ".join(WORDS[(seed + i * (1 + seed % 3)) % len(WORDS)] for i in range(n))


class Fleet:
    """A router in this loop over simulated engines that others have started."""

    def __init__(self, folder, stack, roles, dialect, *, more="", index=""):
        self.dialect = dialect
        self.sims = {}
        self._stack = stack
        pools = []
        for role, number in roles.items():
            urls = []
            for n in range(number):
                sim = self.start(f"{role}-{n}", role)
                boot = f", bootstrap_port: {sim.ports['bootstrap']}" if "bootstrap" in sim.ports else ""
                urls.append(f"{{url: '{sim.url}'{boot}}}")
            pools.append(
                f"  {role}: {{role: {role}, engine: sim, kv_events: true, options: {{dialect: {dialect}}}, "
                f"external: [{', '.join(urls)}]}}"
            )
        file = folder / "topology.yaml"
        head = f"name: t\nmodel: {{served_name: {MODEL}, vocab_size: 151936}}\n"
        scheduling = f"scheduling: {{kv_index: {{tokens_within: 5s{index}}}{more}}}\n"
        file.write_text(head + scheduling + "pools:\n" + "\n".join(pools) + "\n")
        plan = plan_file(file, environ={"HOME": str(folder)})
        assert plan.router is not None
        self.plan = replace(plan, router=replace(plan.router, port=0, admin_port=0))

    def start(self, name, role, ports=()):
        flags = [
            "--dialect", self.dialect, "--role", role, "--served-model-name", MODEL, "--speed", "5",
            "--enable-cache-report", "--page-size", str(PAGE), *ports,
        ]  # fmt: skip
        if "--kv-events-port" not in ports:
            flags += ["--kv-events-port", "0"]
        sim = self.sims[name] = self._stack.enter_context(SimProcess(*flags))
        return sim

    async def __aenter__(self):
        self.router = Router(self.plan)
        await self.router.start()
        self.client = httpx.AsyncClient(base_url=self.router.url, timeout=20.0, trust_env=False)
        async with asyncio.timeout(GUARD_S):
            # Known engines are not used before they are tried.
            while not all(s.ready for s in self.router.registry.states()):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        return self

    async def __aexit__(self, *_):
        await self.client.aclose()
        await self.router.close()

    @property
    def index(self):
        return self.router.scheduler.cached.exact

    def exact(self):
        """Every endpoint is gone by."""
        return len(self.index.holders) == len(self.sims) and all(map(self.index.exact, self.sims))

    def total(self, what):
        return sum(getattr(c, what) for c in self.router.scheduler.cached.checked.values())

    def state(self, name):
        return self.router._kv.show(name)

    async def chat(self, *turns, **more):
        messages = [
            {"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(turns)
        ]
        body = {"model": MODEL, "messages": messages, "max_tokens": 8, **more}
        answer = await self.client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def complete(self, prompt, **more):
        body = {"model": MODEL, "prompt": prompt, "max_tokens": 4, **more}
        answer = await self.client.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


@pytest.fixture
def fleet(tmp_path):
    with contextlib.ExitStack() as stack:
        yield lambda roles, dialect, **more: Fleet(tmp_path, stack, roles, dialect, **more)


FLEETS = [
    ({"unified": 2}, "sglang"),
    ({"unified": 2}, "vllm"),
    ({"prefill": 2, "decode": 1}, "sglang"),
    ({"prefill": 2, "decode": 1}, "vllm"),
]


@pytest.mark.parametrize(("roles", "dialect"), FLEETS)
async def test_conversations_go_where_they_are_held_and_every_prediction_is_right(
    fleet, until, roles, dialect
):
    async with fleet(roles, dialect) as here:
        await until(here.exact)
        for n in range(3):
            turns = [words(1500, n)]
            for turn in range(3):
                told = await here.chat(*turns)
                hit = told["usage"]["prompt_tokens_details"]["cached_tokens"]
                assert hit >= turn * PAGE * 12, "what the turns before have left is found"
                turns += [told["choices"][0]["message"]["content"] or ".", words(120, n + turn)]
        assert here.total("requests") == 9
        assert here.total("reported") > 0
        assert here.total("wrong") == 0
        assert here.exact()
        metrics = here.router.metrics.render().decode()
        assert 'pdctl_tokens_total{how="asked"} 9.0' in metrics
        assert "pdctl_kv_exact{" in metrics


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_prompts_of_token_ids_need_nobody_to_be_asked(fleet, until, dialect):
    async with fleet({"unified": 2}, dialect) as here:
        await until(here.exact)
        ids = [256 + (i * 7) % 90 for i in range(PAGE * 5 + 3)]
        assert [await here.complete(ids) for _ in range(2)] == [0, PAGE * 5]
        assert await here.complete([*ids[: PAGE * 2], *ids[: PAGE * 2]]) == PAGE * 2
        assert here.router._kv.tokens.counts["ids"] == 3
        assert here.router._kv.tokens.counts["asked"] == 0
        assert here.total("wrong") == 0


async def test_the_same_prompt_is_asked_about_once_and_images_never(fleet, until):
    async with fleet({"unified": 2}, "vllm") as here:
        await until(here.exact)
        for _ in range(2):
            await here.complete(words(300))
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        await here.chat([{"type": "text", "text": words(300)}, image])
        await here.complete("short")
        counts = here.router._kv.tokens.counts
        assert (counts["asked"], counts["known"], counts["unknown"]) == (1, 1, 1)


async def test_a_flushed_engine_is_believed_to_hold_nothing(fleet, until):
    async with fleet({"unified": 1}, "sglang") as here:
        await until(here.exact)
        assert await here.complete(words(300)) == 0
        assert await here.complete(words(300)) > 0
        holder = here.index.holders["unified-0"]
        await until(lambda: len(holder.blocks))
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.post(f"{here.sims['unified-0'].url}/flush_cache")
        await until(lambda: not len(holder.blocks))
        assert await here.complete(words(300)) == 0
        assert here.total("wrong") == 0


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
async def test_an_engine_that_is_killed_and_restarted_leaves_no_ghosts(fleet, until, dialect):
    async with fleet({"unified": 1}, dialect) as here:
        await until(here.exact)
        await here.complete(words(300))
        await until(lambda: len(here.index.holders["unified-0"].blocks))
        old = here.sims["unified-0"]
        told = here.state("unified-0")
        events = int(told["source"].rpartition(":")[2])
        replay = int(here.router._kv.watch.readers["unified-0"].source.replay.rpartition(":")[2])
        old.kill()
        await until(lambda: not here.router.registry.get("unified-0").ready)
        here.start(
            "unified-0",
            "unified",
            ("--port", str(old.port), "--kv-events-port", str(events), "--kv-replay-port", str(replay)),
        )
        await until(lambda: here.router.registry.get("unified-0").ready and here.exact())
        assert await here.complete(words(300)) == 0
        assert await here.complete(words(300)) > 0
        assert here.total("wrong") == 0


async def test_an_index_that_is_wrong_steps_back_for_the_approximate_one_and_says_so(fleet, until):
    async with fleet({"unified": 1}, "vllm", index=", max_error: 0.2") as here:
        await until(here.exact)
        name, prompt = "unified-0", words(300)
        await here.complete(prompt)
        holder = here.index.holders[name]
        await until(lambda: len(holder.blocks))
        for n in range(40):
            # A prompt that nobody has, and an event that says otherwise.
            ids = [1000 + n, *range(300, 300 + PAGE * 3)]
            event = BlocksStored([10 * n, 10 * n + 1], None, pack(ids[: PAGE * 2]), PAGE)
            here.index.apply(name, [event])
            await here.complete(ids)
        assert holder.drops == 1
        assert here.state(name)["state"] != "exact"
        assert here.state(name)["drops"] == 1
        assert f'pdctl_kv_drops_total{{endpoint="{name}"}} 1.0' in here.router.metrics.render().decode()
        before = here.total("predicted")
        await here.complete(prompt)
        assert here.total("predicted") > before, "the approximate index is gone by"


async def test_why_an_engine_is_not_read_is_said(fleet, until):
    made = fleet({"unified": 1}, "sglang")
    made.sims["unified-0"].kill()
    old = made.sims["unified-0"]
    with SimProcess("--port", str(old.port), "--served-model-name", MODEL, "--page-size", "1"):
        async with made as here:
            await until(lambda: here.state("unified-0"))
            assert here.state("unified-0") == {
                "state": "off", "why": "it publishes none (--kv-events-config)",
            }  # fmt: skip
            assert await here.chat("hello")
            assert here.router._kv.tokens.counts == dict.fromkeys(here.router._kv.tokens.counts, 0)


async def test_the_immediate_mode_goes_by_it_too(fleet, until):
    async with fleet({"unified": 2}, "vllm", more=", profile: weighted") as here:
        await until(here.exact)
        assert await here.complete(words(600)) == 0
        found = [await here.complete(words(600)) for _ in range(4)]
        assert all(found)
        assert here.total("wrong") == 0
