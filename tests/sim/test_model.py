"""The model engine: measured totals, interference and transfer, and books that always balance."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.sim import text
from orchestrator.sim.jobs import Event, Job, Mode, ModelConfig, State, What
from orchestrator.sim.model import EngineModel
from orchestrator.sim.timing import LINKS, RDMA, TCP, Link

EXPOSED_MS = {
    "rdma": {1024: 17, 4096: 36, 16384: 67, 32768: 83},
    "tcp": {1024: 97, 4096: 349, 16384: 724, 32768: 634},
}
COLOCATED_TTFT_MS = {1024: 261, 4096: 1052, 16384: 4860, 32768: 11274}


def drain(model: EngineModel, until_s: float = 1e9) -> list[Event]:
    events: list[Event] = []
    while (at_s := model.next_event_s()) is not None and at_s <= until_s:
        events += model.advance(at_s)
    return events


def when(events: list[Event], what: What, job: str | None = None) -> list[float]:
    return [e.at_s for e in events if e.what is what and job in (None, e.job.id)]


def small(**changes: object) -> ModelConfig:
    settings: dict[str, object] = {"kv_tokens": 4096, "block_tokens": 16, "chunk_tokens": 512, **changes}
    return ModelConfig(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", COLOCATED_TTFT_MS)
@pytest.mark.parametrize("link", [RDMA, TCP], ids=lambda link: link.name)
def test_prefill_totals_and_exposed_transfer_are_as_measured(tokens: int, link: Link) -> None:
    model = EngineModel(ModelConfig(link=link, kv_tokens=700_000))
    model.submit(Job("a", tokens, 1, mode=Mode.PREFILL), 0.0)
    events = drain(model)
    (prefilled_s,), (sent_s,) = when(events, What.PREFILLED), when(events, What.SENT)
    assert prefilled_s * 1e3 == pytest.approx(COLOCATED_TTFT_MS[tokens], rel=0.05)
    assert (sent_s - prefilled_s) * 1e3 == pytest.approx(EXPOSED_MS[link.name][tokens], rel=0.25)


def test_a_pull_exposes_the_whole_transfer() -> None:
    model = EngineModel(ModelConfig(link=Link("pull", 20e9, 0.011, overlaps=False)))
    model.submit(Job("d", 32_768, 1, mode=Mode.DECODE), 0.0)
    assert when(drain(model), What.RESERVED) == [0.0]
    model.fetch("d", 32_768, 0.0)
    (arrived_s,) = when(drain(model), What.ARRIVED)
    assert arrived_s == pytest.approx(0.011 + 32_768 * 262_144 / 2 / 20e9)


def jitter(config: ModelConfig, *, prefills: bool) -> float:
    """P99/P50 of the gaps of 16 decode streams, with a 16K prefill injected every 6 s or none."""
    model = EngineModel(config)
    for i in range(16):
        model.submit(Job(f"d{i}", 1000, 100_000), 0.0)
    last: dict[str, float] = {}
    gaps = []
    next_s, count = 10.0, 0
    while (at_s := model.next_event_s()) is not None and at_s < 70.0:
        if prefills and at_s > next_s:
            model.advance(next_s)
            model.submit(Job(f"p{count}", 16_384, 2), next_s)
            next_s, count = next_s + 6.0, count + 1
            continue
        for event in model.advance(at_s):
            name = event.job.id
            if event.what is What.TOKEN and name.startswith("d"):
                if name in last and at_s > 10.0:
                    gaps.append(event.at_s - last[name])
                last[name] = event.at_s
    gaps.sort()
    return gaps[len(gaps) * 99 // 100] / gaps[len(gaps) // 2]


def test_interference_is_as_measured() -> None:
    """Measured ratios: mixed chunks of 2,048 48x, of 512 13x, disaggregated 1.23x."""
    size = {"kv_tokens": 2_000_000}
    assert jitter(ModelConfig(chunk_tokens=2048, **size), prefills=True) == pytest.approx(48, rel=0.1)  # type: ignore[arg-type]
    assert jitter(ModelConfig(chunk_tokens=512, **size), prefills=True) == pytest.approx(13, rel=0.1)  # type: ignore[arg-type]
    assert jitter(ModelConfig(mixed=False, **size), prefills=True) > 25  # type: ignore[arg-type]
    assert jitter(ModelConfig(**size), prefills=False) < 1.23  # type: ignore[arg-type]


def test_prefill_first_stops_decode_and_mixed_does_not() -> None:
    gaps = {}
    for mixed in (True, False):
        model = EngineModel(ModelConfig(mixed=mixed, chunk_tokens=512))
        model.submit(Job("d", 100, 50), 0.0)
        drain(model, 0.3)
        model.submit(Job("p", 8192, 1), 0.3)
        times = when(drain(model), What.TOKEN, "d")
        gaps[mixed] = max(b - a for a, b in itertools.pairwise(times))
    assert gaps[False] > 2.0
    assert gaps[True] < 0.3


def test_no_step_is_shorter_than_the_floor_and_a_slow_engine_takes_longer() -> None:
    for factor in (1.0, 3.0):
        model = EngineModel(small())
        model.slowdown = factor
        model.submit(Job("a", 10, 1), 0.0)
        assert when(drain(model), What.FINISHED) == [pytest.approx(0.020 * factor)]


def test_a_long_prompt_shares_its_chunks_in_order_of_arrival() -> None:
    model = EngineModel(small())
    model.submit(Job("first", 900, 1), 0.0)
    model.submit(Job("second", 50, 1), 0.0)
    events = drain(model)
    # The second fits into what the first leaves of its second chunk.
    assert when(events, What.PREFILLED, "first") == when(events, What.PREFILLED, "second")


def hashes(tokens: int) -> tuple[int, ...]:
    return text.block_hashes(text.block_states(range(100, 100 + tokens), 16), 0)


def test_a_cached_prefix_is_found_and_saves_time() -> None:
    model = EngineModel(small())
    model.submit(Job("a", 200, 1, hashes(200)), 0.0)
    (first_s,) = when(drain(model), What.FINISHED)
    model.submit(Job("b", 200, 1, hashes(200)), first_s)
    model.submit(Job("c", 200, 1, hashes(200), private=True), first_s)
    events = drain(model)
    cached = {e.job.id: e.job.cached_tokens for e in events if e.what is What.FINISHED}
    assert cached == {"b": 192, "c": 0}
    assert model.counters.cached_tokens == 192


def test_at_least_one_token_of_a_prompt_is_always_computed() -> None:
    model = EngineModel(small())
    for name, at_s in (("a", 0.0), ("b", 10.0)):
        model.advance(at_s)
        model.submit(Job(name, 160, 1, hashes(160)), at_s)
        events = drain(model)
    assert events[-1].job.cached_tokens == 144


def test_output_is_cached_for_the_next_turn() -> None:
    model = EngineModel(small())
    turn = hashes(400)
    model.submit(Job("one", 100, 100, turn), 0.0)
    end_s = drain(model)[-1].at_s
    model.submit(Job("two", 300, 1, turn), end_s)
    # Of 200 tokens the last one's KV was never computed.
    assert drain(model)[-1].job.cached_tokens == 192


def test_a_gated_job_waits_for_its_peer_and_an_optimistic_one_only_to_send() -> None:
    model = EngineModel(small())
    model.submit(Job("shy", 100, 1, mode=Mode.PREFILL, gated=True), 0.0)
    assert drain(model) == []
    assert model.load().gated == 1
    model.ungate("shy", 1.0)
    events = drain(model)
    assert when(events, What.SENT)[0] > 1.0
    model.submit(Job("bold", 100, 1, mode=Mode.PREFILL, gated=True, optimistic=True), 5.0)
    events = drain(model)
    assert when(events, What.PREFILLED)
    assert not when(events, What.SENT)
    assert model.load().held == 1
    model.advance(20.0)
    model.ungate("bold", 20.0)
    assert when(drain(model), What.SENT)[0] > 20.0
    assert model.load().used_tokens == 0


def test_a_lease_holds_kv_until_it_is_released_renewed_or_expires() -> None:
    model = EngineModel(small())
    for name in ("pulled", "left", "kept"):
        model.submit(Job(name, 100, 1, mode=Mode.PREFILL, lease_s=30.0), 0.0)
    drain(model, 1.0)
    model.advance(1.0)
    assert model.load().used_tokens == 3 * 112
    assert model.release("pulled", 1.0)
    assert not model.release("pulled", 1.0)
    assert model.renew("kept", 50.0)
    events = drain(model)
    assert when(events, What.EXPIRED, "left")[0] < when(events, What.EXPIRED, "kept")[0] == 50.0
    assert model.counters.expired == 2
    assert not model.renew("left", 99.0)


def test_received_kv_starts_with_or_without_its_first_token() -> None:
    model = EngineModel(small())
    for name, first, now_s in (("sglang", True, 0.0), ("vllm", False, 10.0)):
        model.advance(now_s)
        model.submit(Job(name, 100, 3, mode=Mode.DECODE), now_s)
        assert [e.what for e in model.advance(now_s)] == [What.RESERVED]
        model.kv_ready(name, now_s, first_token=first)
        times = when(drain(model), What.TOKEN, name)
        assert len(times) == 3
        assert (times[0] == now_s) is first
    assert model.counters.received_tokens == 200


def test_a_decode_engine_admits_only_what_fits_with_headroom() -> None:
    model = EngineModel(small(kv_tokens=1024, reserve_tokens=512))
    for i in range(3):
        model.submit(Job(f"d{i}", 300, 200, mode=Mode.DECODE), 0.0)
    assert len(when(model.advance(0.0), What.RESERVED)) == 2
    assert model.load().prealloc == 1
    assert model.cancel("d0", 0.0)
    assert when(model.advance(0.0), What.RESERVED, "d2") == [0.0]


def test_kv_that_never_comes_can_be_recomputed() -> None:
    model = EngineModel(small())
    model.submit(Job("d", 100, 2, mode=Mode.DECODE), 0.0)
    model.advance(0.0)
    model.recompute("d", 1.0)
    events = drain(model)
    assert when(events, What.PREFILLED)
    assert when(events, What.FINISHED)


def test_a_batch_that_outgrows_memory_is_preempted_and_still_finishes() -> None:
    model = EngineModel(small(kv_tokens=512))
    for i in range(6):
        model.submit(Job(f"j{i}", 60, 200), 0.0)
    events = drain(model)
    assert model.counters.preemptions > 0
    assert len(when(events, What.FINISHED)) == 6
    assert model.load().used_tokens == 0


def test_output_can_turn_out_longer_or_shorter() -> None:
    model = EngineModel(small())
    model.submit(Job("a", 10, 100), 0.0)
    drain(model, 0.1)
    model.resize("a", 2)
    events = drain(model)
    assert events[-1].what is What.FINISHED
    assert events[-1].job.produced < 20


def test_what_cannot_be_is_refused() -> None:
    model = EngineModel(small())
    model.submit(Job("a", 10, 1), 0.0)
    for wrong in (Job("a", 1, 1), Job("b", 0, 1), Job("c", 1, 0), Job("d", 4000, 97)):
        with pytest.raises(ValueError, match="job"):
            model.submit(wrong, 0.0)
    model.advance(5.0)
    with pytest.raises(ValueError, match="backwards"):
        model.advance(4.0)
    with pytest.raises(ValueError, match="backwards"):
        model.submit(Job("z", 1, 1), 4.0)


def test_link_is_shared_in_order() -> None:
    model = EngineModel(ModelConfig(link=LINKS["tcp"], kv_tokens=700_000))
    model.submit(Job("before", 1, 1), 0.0)
    for name in ("a", "b"):
        model.submit(Job(name, 4096, 1, mode=Mode.PREFILL), 0.0)
    events = drain(model)
    assert when(events, What.PREFILLED, "a") == when(events, What.PREFILLED, "b")
    first, second = when(events, What.SENT, "a")[0], when(events, What.SENT, "b")[0]
    assert second - first == pytest.approx(4096 * 262_144 / 2 / 1.65e9, rel=1e-6)


MODES = st.sampled_from(["local", "prefill", "gated", "optimistic", "lease", "decode"])
ACTION = st.tuples(
    st.sampled_from(["submit", "submit", "submit", "cancel", "ungate", "ready", "release", "wait"]),
    MODES,
    st.integers(1, 400),
    st.integers(1, 60),
    st.floats(0.0, 0.3),
)


def make(name: str, kind: str, prompt: int, output: int) -> Job:
    mode = {"local": Mode.LOCAL, "decode": Mode.DECODE}.get(kind, Mode.PREFILL)
    return Job(
        name, prompt, output, hashes(prompt + output), mode,
        gated=kind in ("gated", "optimistic"), optimistic=kind == "optimistic",
        lease_s=2.0 if kind == "lease" else None,
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTION, max_size=40), st.booleans(), st.integers(40, 120), st.integers(1, 8))
def test_any_history_keeps_the_books(
    actions: list[tuple[str, str, int, int, float]], mixed: bool, blocks: int, most: int
) -> None:
    """KV is never over capacity, every job ends exactly once, and nothing is left at rest."""
    model = EngineModel(small(kv_tokens=blocks * 16, mixed=mixed, max_running=most, chunk_tokens=128))
    jobs: dict[str, Job] = {}
    ended: dict[str, int] = {}
    now_s = 0.0

    def look(events: list[Event]) -> None:
        for event in events:
            if event.what in (What.FINISHED, What.SENT, What.EXPIRED):
                ended[event.job.id] = ended.get(event.job.id, 0) + 1
        load = model.load()
        assert load.used_tokens + load.cached_tokens <= load.total_tokens
        assert load.running + load.prefilling + load.reserved <= most
        live = [job for job in jobs.values() if job.state is not State.ENDED]
        assert set(model.jobs()) == set(live)
        assert model.memory.pool.used == len({b for job in live for b in job.blocks})

    for number, (action, kind, prompt, output, wait_s) in enumerate(actions):
        look(model.advance(now_s))
        live = sorted(job.id for job in model.jobs())
        name = live[prompt % len(live)] if live else ""
        if action == "submit" and prompt + output <= blocks * 16:
            jobs[f"j{number}"] = make(f"j{number}", kind, prompt, output)
            model.submit(jobs[f"j{number}"], now_s)
        elif action in ("cancel", "release"):
            if (model.cancel if action == "cancel" else model.release)(name, now_s):
                ended[name] = ended.get(name, 0) + 1
        elif action == "ungate":
            model.ungate(name, now_s)
        elif action == "ready":
            model.kv_ready(name, now_s, first_token=bool(output % 2))
        now_s += wait_s
    # Help those who wait for a peer, until nobody does.
    for _ in range(10 * len(jobs) + 10):
        look(drain(model))
        now_s = max(now_s, max((e for e in [model.next_event_s()] if e is not None), default=now_s)) + 100.0
        look(model.advance(now_s))
        for job in list(model.jobs()):
            model.ungate(job.id, now_s)
            model.kv_ready(job.id, now_s, first_token=False)
    look(drain(model))
    assert list(model.jobs()) == []
    assert ended == dict.fromkeys(jobs, 1)
    load = model.load()
    assert (load.used_tokens, load.running, load.waiting, load.held, load.reserved) == (0, 0, 0, 0, 0)
