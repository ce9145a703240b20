"""What is told of a request on its way: why it went where it did, and what a predictor learns of it."""

from dataclasses import asdict

import pytest
from late import Deck, Shortest, decodes, prefills, unified

from orchestrator.analysis.explain import lines
from orchestrator.core.choosing import Step
from orchestrator.core.contracts import Bind
from orchestrator.core.lateprofile import LateProfile, LateRole, LateSettings
from orchestrator.core.slo import SloClass, Target
from orchestrator.core.types import End, Load, Role


class Without:
    unit = "seconds"

    def __init__(self, *names):
        self.names = names

    def filter(self, request, candidates, context):
        return [e for e in candidates if e.id not in self.names]

    def score(self, request, candidates, context):
        return [1.5 if e.id in self.names else 0.0 for e in candidates]


class Broken:
    def filter(self, request, candidates, context):
        raise RuntimeError("no")


def deck(*ends, filters=(), scorers=(), **kwargs):
    role = LateRole(tuple(filters), tuple(scorers))
    settings = LateSettings(hand_ahead_s=0.0, unit_tokens=0)
    profile = LateProfile(Step("order", Shortest()), prefill=role, unified=role, settings=settings)
    return Deck(ends, profile=profile, **kwargs)


def choices(made, name):
    return made.made[name][0].explain()


class TestExplain:
    def test_candidates_are_priced_with_the_runner_up(self):
        made = deck(*prefills("p0", "p1", "p2"), *decodes("d0"), speeds={"p1": 0.5, "p2": 2.0})
        made.ask("a", 1000)
        prefill, _ = choices(made, "a")
        assert (prefill.role, prefill.chosen, prefill.runner_up) == (Role.PREFILL, "p1", "p0")
        assert [one.endpoint for one in prefill.scored] == ["p1", "p0", "p2"]
        assert prefill.scored[0].parts == pytest.approx(
            {"wait": 0.0, "prefill": 0.5, "hand-off": 0.02, "others": 0.5, "late": 0.0}
        )

    def test_who_was_taken_out_is_told_by_which_filter(self):
        filters = (Step("maintenance", Without("p0")), Step("tenants", Without("p1")))
        made = deck(*prefills("p0", "p1", "p2", "p3"), *decodes("d0"), filters=filters)
        made.ask("a", 1000, avoid=("p2",))
        prefill, _ = choices(made, "a")
        assert prefill.filtered == {"p0": "maintenance", "p1": "tenants", "p2": "failed-before"}
        assert [one.endpoint for one in prefill.scored] == ["p3"]

    def test_scorers_are_told_apart_and_those_that_failed_named(self):
        made = deck(
            *unified("u0", "u1"), filters=[Step("broken", Broken())], scorers=[Step("price", Without("u0"))]
        )
        made.ask("a", 1000)
        (alone,) = choices(made, "a")
        assert (alone.role, alone.chosen, alone.fallbacks) == (Role.UNIFIED, "u1", ("broken",))
        parts = {one.endpoint: one.parts["price"] for one in alone.scored}
        assert parts == {"u0": 1.5, "u1": 0.0}
        for one in alone.scored:
            assert sum(one.parts.values()) == pytest.approx(one.total)

    def fleet(self):
        full = Load(0.0, running=1, kv_used_tokens=9900, kv_total_tokens=10_000)
        ends = [*prefills("p0", late_decode=True), *decodes("d0", "d1", "d2", "d3")]
        made = deck(*ends, classes={"t": SloClass("t", itl=Target(0.0115))})
        made.change("d0", load=full)
        return made

    def test_decode_sides_are_told_with_who_had_no_room_and_whose_gaps_would_break(self):
        made = self.fleet()
        made.ask("first", 10, slo_class="t")
        made.prefilled("first")
        tight = made.route("first").decode
        made.ask("a", 1000, avoid=("d3" if tight != "d3" else "d2",))
        _, decode = choices(made, "a")
        shunned = "d3" if tight != "d3" else "d2"
        assert decode.filtered == {"d0": "memory", tight: "gap-promise", shunned: "failed-before"}
        assert [one.endpoint for one in decode.scored] == [decode.chosen]

    def test_the_runner_up_of_a_decode_side_that_was_bound_late(self):
        made = self.fleet()
        made.ask("a", 1000)
        made.prefilled("a")
        bind = made.made["a"][-1]
        assert isinstance(bind, Bind)
        (decode,) = bind.explain()
        assert decode.chosen == bind.route.decode
        assert decode.runner_up in {"d1", "d2", "d3"} - {decode.chosen}
        assert len(decode.scored) == 3

    def test_the_words_of_pdctl_explain_say_all_of_it(self):
        made = deck(*prefills("p0", "p1"), *decodes("d0", "d1"), filters=[Step("maintenance", Without("p0"))])
        made.change("d1", load=Load(0.0, running=1, kv_used_tokens=9900, kv_total_tokens=10_000))
        made.ask("a", 1000)
        record = {
            "request_id": "a", "client_request_id": None, "path": "chat", "model": "m", "arrived_s": 0.0,
            "end": "completed", "status": 200, "output_tokens": 5, "e2e_s": 1.0, "recorded": "full",
            "route": {"prefill": "p1", "decode": "d0"},
            "choices": [
                {
                    "role": c.role.value, "chosen": c.chosen, "runner_up": c.runner_up, "unit": c.unit,
                    "scored": [asdict(one) for one in c.scored],
                    "filtered": c.filtered, "fallbacks": list(c.fallbacks),
                }
                for c in choices(made, "a")
            ],
        }  # fmt: skip
        text = "\n".join(lines(record))
        assert "p0: kept out by maintenance" in text
        assert "d1: kept out by memory" in text
        assert "prefill: p1 (predicted cost, the lowest wins)" in text


class TestLearned:
    def test_a_first_token_is_told_with_what_was_predicted(self):
        made = Deck([*prefills("p0"), *decodes("d0")])
        made.ask("a", 1000)
        made.ask("b", 500)
        made.at(1.1)
        made.prefilled("a")
        made.at(1.7)
        made.prefilled("b")
        made.first("b")
        served = made.predictor.told[-1]
        assert (served.prefill, served.decode, served.prompt_tokens) == ("p0", "d0", 500)
        assert served.waited_s == pytest.approx(1.1)
        assert served.first_token_s == served.prefill_s == pytest.approx(0.6)
        assert served.admitted.wait_s == pytest.approx(1.0)
        assert served.dispatched.waited_s == pytest.approx(1.1)

    @pytest.mark.parametrize(("tokens", "told"), [(None, 0), (0, 0), (1, 1), (50, 1)])
    def test_an_end_teaches_nothing_without_tokens(self, tokens, told):
        made = Deck([*prefills("p0"), *decodes("d0")])
        made.ask("a", 1000)
        made.first("a")
        made.finish("a", output_tokens=tokens)
        assert len(made.predictor.ended) == told

    def test_one_cut_off_tells_a_bound(self):
        made = Deck([*prefills("p0"), *decodes("d0")])
        made.ask("a", 1000)
        made.first("a")
        made.finish("a", End.CANCELLED, output_tokens=9)
        (decoded,) = made.predictor.ended
        assert (decoded.complete, decoded.tokens) == (False, 8)

    def test_what_is_predicted_at_dispatch_adds_up(self):
        made = Deck([*prefills("p0"), *decodes("d0")], classes={"c": SloClass("c", ttft=Target(9.0, 0.95))})
        made.ask("a", 1000, slo_class="c")
        told = made.made["a"][0].predicted
        assert told.ttft_s == pytest.approx(1.02)
        assert told.tail_s == pytest.approx(1.02 * 1.1)
        assert (told.quantile, told.due_s) == (0.95, 9.0)
        assert told.itl_s == pytest.approx(0.01 + 0.001 + 1000e-6, abs=0.002)
