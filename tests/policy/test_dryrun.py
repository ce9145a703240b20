"""A new profile on recorded requests: what differs, what is refused, what fails, and when it is not used."""

from dataclasses import replace

import pytest

from orchestrator.clock import FakeClock
from orchestrator.core.choosing import Step
from orchestrator.core.slo import SloClass, Target
from orchestrator.core.types import Inflight, PathKind, Role, Snapshot
from orchestrator.policy.build import build
from orchestrator.policy.dryrun import dry_run, take
from orchestrator.policy.testing import FakePredictor, FakePrefix, make_endpoint, make_request

PAIRS = (
    *(make_endpoint(f"p{i}", Role.PREFILL, inflight=Inflight(i)) for i in range(3)),
    *(make_endpoint(f"d{i}", Role.DECODE, inflight=Inflight(i)) for i in range(2)),
)
ALONE = tuple(make_endpoint(f"u{i}", inflight=Inflight(i)) for i in range(3))
CLASSES = {"fast": SloClass("fast", ttft=Target(1.0)), "never": SloClass("never", ttft=Target(0.001))}

OWN = """
class Raises:
    def filter(self, request, candidates, context):
        raise KeyError("no such label")


class OnlyLast:
    def filter(self, request, candidates, context):
        return candidates[-1:]


class None_:
    def filter(self, request, candidates, context):
        return []


class Some:
    def filter(self, request, candidates, context):
        return candidates if request.prompt_tokens < 1500 else []


class Strangers:
    def filter(self, request, candidates, context):
        return context.snapshot.endpoints


class TooFew:
    unit = "seconds"

    def score(self, request, candidates, context):
        return [0.0]


class NoOrder:
    def key(self, waiting):
        return float("nan")


class BadDefer:
    def key(self, waiting):
        return waiting.work_s

    def defer(self, queue, now_s, capacity):
        return [None]
"""


def samples(endpoints=PAIRS, n=6, serves=lambda kind, endpoint: True, **options):
    requests = [make_request(id=str(i), prompt_tokens=1000 + 200 * i, slo_class="fast") for i in range(n)]
    options = {"predictor": FakePredictor(), "classes": CLASSES, "now_s": 50.0, **options}
    requests = options.pop("requests", requests)
    return take(requests, Snapshot(50.0, endpoints), serves, options.pop("prefix", FakePrefix()), **options)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def tried(new, old="least-requests", folder=".", endpoints=PAIRS, **options):
    return dry_run(build(old, folder), build(new, folder), samples(endpoints, **options), FakeClock().now_s)


def own(name, role="prefill", kind="filters", mode="immediate"):
    step = f"./own.py:{name}"
    if kind == "order":
        return {"mode": mode, "order": {"use": step}}
    return {"mode": mode, role: {kind: [step]}}


def test_samples_are_as_if_they_arrived_now_on_the_endpoints_there_are():
    late = make_request(arrived_s=3.0, deadline_s=4.0, slo_class="fast")
    busy = replace(ALONE[0], inflight=Inflight(1, 2000, 3000))
    (sample,) = samples((busy, *ALONE[1:]), requests=[late])
    assert (sample.request.arrived_s, sample.request.deadline_s) == (50.0, None)
    assert [e.id for e in sample.fleet.single] == ["u0", "u1", "u2"]
    context = sample.context
    assert (context.now_s, context.slo, context.first_token_by_s) == (50.0, CLASSES["fast"], 51.0)
    assert [context.wait_s(i) for i in ("u0", "u1")] == [0.2, 0.0]


def test_what_nothing_serves_now_is_no_sample():
    assert samples(requests=[make_request(model="gone")]) == []
    assert samples(serves=lambda kind, endpoint: kind is not PathKind.CHAT) == []
    assert samples((replace(ALONE[0], ready=False),)) == []
    assert samples(PAIRS[:3]) == []
    assert samples(requests=[make_request(path=PathKind.TOKENIZE)]) == []


def test_the_same_profile_does_the_same():
    for name in ("least-requests", "random", "power-of-two", "round-robin", "slo", "slo-shortest"):
        report = tried(name, name)
        assert (report.samples, report.differ, report.refused, report.failed) == (6, 0, 0, {})
        assert report.why_not() is None


def test_what_would_go_elsewhere_is_counted(folder):
    report = tried(own("OnlyLast"), folder=folder)
    assert (report.differ, report.refused) == (6, 0)
    assert report.why_not() is None
    assert report.says() == (
        "tried on 6 recorded requests: 6 would go elsewhere, 0 be refused (0 by the profile in use)"
    )


@pytest.mark.parametrize("endpoints", [PAIRS, ALONE])
def test_a_late_profile_is_compared_by_its_price(endpoints):
    report = tried("slo", endpoints=endpoints)
    assert (report.samples, report.refused, report.failed) == (6, 0, {})
    warm = FakePrefix({endpoints[1].id: 8})
    assert tried("slo", "slo", endpoints=endpoints, prefix=warm).differ == 0
    moved = dry_run(build("least-requests"), build("slo"), samples(endpoints, prefix=warm), FakeClock().now_s)
    assert moved.differ == 6


def test_a_late_profile_prefers_whoever_is_cheaper_alone_or_in_a_pair():
    both = (*PAIRS, make_endpoint("u0"))
    slow = FakePredictor({e.id: 3.0 for e in PAIRS})
    assert (
        dry_run(build("priced"), build("slo"), samples(both, predictor=slow), FakeClock().now_s).differ == 6
    )
    slow = FakePredictor({"u0": 3.0})
    alone_is_slow = dry_run(build("slo"), build("slo"), samples(both, predictor=slow), FakeClock().now_s)
    assert alone_is_slow.refused == 0


def test_without_a_predictor_it_is_tried_all_the_same():
    assert tried("slo", predictor=None).failed == {}
    assert tried("predicted-shed", predictor=None).failed == {}


@pytest.mark.parametrize(
    ("profile", "name", "says"),
    [
        (own("Raises"), "./own.py:Raises", "KeyError: 'no such label'"),
        (own("Raises", "decode"), "./own.py:Raises", "KeyError: 'no such label'"),
        (own("Strangers"), "./own.py:Strangers", "which it was not given"),
        (own("Raises", mode="late"), "./own.py:Raises", "KeyError: 'no such label'"),
        (own("Strangers", mode="late"), "./own.py:Strangers", "kept what it was not given"),
        (
            own("TooFew", kind="scorers", mode="late"),
            "./own.py:TooFew",
            "returned 1 figures for 3 candidates",
        ),
        (own("NoOrder", kind="order", mode="late"), "./own.py:NoOrder", "the key is not a number"),
    ],
)
def test_a_policy_that_fails_is_named_with_what_it_said_first(folder, profile, name, says):
    report = tried(profile, folder=folder)
    assert report.failed.keys() == {name}
    times, said = report.failed[name]
    assert times == 6
    assert says in said
    assert report.refused == 0
    assert report.why_not().startswith(f"on 6 recorded requests policy {name}: ")
    assert report.why_not().endswith("(6 times)")


def test_to_put_off_what_was_not_in_the_queue(folder):
    report = tried(own("BadDefer", kind="order", mode="late"), folder=folder)
    assert report.failed == {
        "./own.py:BadDefer": (1, "policy ./own.py:BadDefer: ValueError: put off what was not in the queue")
    }


def test_one_that_would_refuse_most_of_what_is_served_is_a_mistake(folder):
    report = tried(own("None_"), folder=folder)
    assert (report.refused, report.newly_refused, report.differ) == (6, 6, 0)
    assert report.why_not() == ("it would refuse 6 of 6 recorded requests that the profile in use accepts")
    late = tried(own("None_", mode="late"), folder=folder)
    assert late.newly_refused == 6


def test_one_that_refuses_as_the_one_in_use_does_is_none(folder):
    both = own("None_")
    report = dry_run(build(both, folder), build(both, folder), samples(), FakeClock().now_s)
    assert (report.refused_before, report.refused, report.newly_refused) == (6, 6, 0)
    assert report.why_not() is None


def test_up_to_half_may_be_refused(folder):
    report = tried(own("Some"), folder=folder)
    assert report.newly_refused == 3
    assert report.why_not() is None


def test_shedding_that_is_asked_for_is_counted():
    requests = [make_request(id=str(i), slo_class="never" if i == 0 else "fast") for i in range(4)]
    report = tried("predicted-shed", requests=requests)
    assert (report.refused, report.refused_before) == (1, 0)


def test_nothing_recorded_is_said():
    report = dry_run(build("priced"), build("slo"), [], FakeClock().now_s)
    assert report.why_not() is None
    assert report.says() == "no request was recorded yet: it was built, and not tried"


class Slow:
    """A profile whose filter takes a while by the clock."""

    def __init__(self, clock, *takes_s):
        self.clock, self.takes_s, self.calls = clock, list(takes_s), 0
        built = build({"prefill": {"filters": ["kv-capacity"]}})
        prefill = replace(built.prefill, filters=(Step("slow", self),))
        self.profile = replace(built, prefill=prefill)

    def filter(self, request, candidates, context):
        self.clock.advance(self.takes_s[min(self.calls, len(self.takes_s) - 1)])
        self.calls += 1
        return candidates


def test_a_policy_that_stalls_has_failed():
    clock = FakeClock()
    slow = Slow(clock, 0.006)
    report = dry_run(build("priced"), slow.profile, samples(), clock.now_s)
    assert slow.calls == 3
    assert report.failed["slow"][0] == 3
    assert "it stalled, and is left out" in report.why_not()


def test_a_hiccup_is_no_failure():
    clock = FakeClock()
    report = dry_run(build("priced"), Slow(clock, 0.006, 0.0).profile, samples(), clock.now_s)
    assert report.why_not() is None


def test_it_ends_when_it_takes_too_long_and_says_who_was_slow():
    clock = FakeClock()
    slow = Slow(clock, 0.3)
    report = dry_run(build("priced"), slow.profile, samples(), clock.now_s)
    assert (report.samples, slow.calls) == (1, 1)
    assert "policy slow: a call took 300.0 ms, 5 ms are allowed (once)" in report.why_not()
