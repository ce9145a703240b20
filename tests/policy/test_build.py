"""Immediate and late profiles from plain data, and the loading of policies: all mistakes, where they are."""

import pytest

from orchestrator.core.lateprofile import LateProfile, LateSettings
from orchestrator.core.types import Role
from orchestrator.errors import ParamError, PluginError, TopologyError
from orchestrator.policy.build import build, make_policy
from orchestrator.policy.late import LateParams


def refused(profile, base_dir="."):
    """The findings as path -> text."""
    with pytest.raises(ParamError) as caught:
        build(profile, base_dir)
    error = caught.value
    assert isinstance(error, TopologyError)
    assert len(error.paths) == len(error.problems)
    return {path: str(problem) for path, problem in zip(error.paths, error.problems, strict=True)}


def only(profile, base_dir="."):
    ((path, text),) = refused(profile, base_dir).items()
    return path, text


def test_a_profile_of_ones_own():
    profile = build(
        {
            "mode": "immediate",
            "prefill": {
                "filters": [{"use": "queue-depth-limit", "max": 5}],
                "scorers": [{"use": "prefix-affinity", "weight": 3.0}, {"use": "token-load", "weight": 2}],
                "picker": {"use": "weighted-random", "temperature": 0.5},
            },
        }
    )
    prefill = profile.prefill
    assert [s.name for s in prefill.filters] == ["queue-depth-limit"]
    assert [(s.name, s.weight) for s in prefill.scorers] == [("prefix-affinity", 3.0), ("token-load", 2.0)]
    assert prefill.picker.name == "weighted-random"


def test_what_is_left_out_is_the_defaults():
    default, own = build("priced"), build({"prefill": {}})
    assert (own.prefill.filters, own.prefill.scorers, own.prefill.picker.name) == ((), (), "max-score")
    for role in ("decode", "unified"):
        steps = [[s.name for s in getattr(p, role).scorers] for p in (own, default)]
        assert steps[0] == steps[1] != []
    assert build({}).prefill.scorers[0].name == "prefix-affinity"


def test_a_step_may_be_the_bare_name():
    bare = {"filters": ["kv-capacity"], "scorers": ["queue-depth"], "picker": "round-robin"}
    profile = build({"unified": bare})
    assert (profile.unified.filters[0].name, profile.unified.picker.name) == ("kv-capacity", "round-robin")
    assert profile.unified.scorers[0].weight == 1.0


def test_the_same_policy_twice_gets_two_names():
    twice = [{"use": "token-load", "scale_tokens": 10}, "queue-depth", {"use": "token-load"}, "token-load"]
    names = [s.name for s in build({"unified": {"scorers": twice}}).unified.scorers]
    assert names == ["token-load", "queue-depth", "token-load#2", "token-load#3"]


def test_each_role_has_policies_of_its_own():
    profile = build("round-robin")
    assert profile.prefill.picker.policy is not profile.decode.picker.policy


def test_the_headers_that_policies_read_are_told():
    assert build("default").headers == frozenset()
    scorers = ["queue-depth", {"use": "session-affinity", "header": "X-User"}]
    assert build({"unified": {"scorers": scorers}}).headers == {"x-user"}


@pytest.mark.parametrize(
    ("profile", "path", "says"),
    [
        ("defalt", (), "did you mean 'default'?"),
        ("mine", (), "shipped: default, priced, slo, "),
        ({"prefil": {}}, ("prefil",), "unknown field 'prefil' (did you mean 'prefill'?)"),
        ({"mode": "lat"}, ("mode",), "mode is 'lat' (the modes are 'immediate' and 'late')"),
        ({"mode": ["late"]}, ("mode",), "the modes are 'immediate' and 'late'"),
        (
            {"order": "edf"},
            ("order",),
            "`order` belongs to mode 'late' (write `mode: late`, or leave it out)",
        ),
        ({"late": {}}, ("late",), "`late` belongs to mode 'late'"),
        ({"decode": []}, ("decode",), "decode: must be a mapping of filters, scorers, picker, not []"),
        ({"decode": None}, ("decode",), "must be a mapping"),
        ({"decode": {"filter": []}}, ("decode", "filter"), "did you mean 'filters'?"),
        ({"decode": {"filters": {}}}, ("decode", "filters"), "must be a list, not {}"),
        ({"decode": {"filters": "kv-capacity"}}, ("decode", "filters"), "must be a list, not 'kv-capacity'"),
        ({"decode": {"filters": [3]}}, ("decode", "filters", 0), "a mapping with `use`, not 3"),
        ({"decode": {"filters": [{"max": 3}]}}, ("decode", "filters", 0), "a mapping with `use`"),
        ({"decode": {"picker": {"use": ["x"]}}}, ("decode", "picker"), "must be a policy's name"),
        (
            {"decode": {"filters": ["queue-depth-limt"]}},
            ("decode", "filters", 0, "use"),
            "did you mean 'queue-depth-limit'?",
        ),
        (
            {"decode": {"filters": [{"use": "queue-depth-limit", "mx": 3}]}},
            ("decode", "filters", 0, "mx"),
            "decode.filters.0.mx: queue-depth-limit has no parameter 'mx' (did you mean 'max'?)",
        ),
        (
            {"decode": {"filters": [{"use": "queue-depth-limit", "zzzz": 3}]}},
            ("decode", "filters", 0, "zzzz"),
            "its parameters: max, max_waiting",
        ),
        (
            {"decode": {"filters": [{"use": "queue-depth-limit", "max": 0}]}},
            ("decode", "filters", 0, "max"),
            "queue-depth-limit: Input should be greater than or equal to 1, not 0",
        ),
        (
            {"decode": {"filters": [{"use": "queue-depth-limit", "max": "many"}]}},
            ("decode", "filters", 0, "max"),
            "not 'many'",
        ),
        (
            {"decode": {"scorers": [{"use": "kv-utilization", "scale": 3}]}},
            ("decode", "scorers", 0, "scale"),
            "kv-utilization takes no parameters",
        ),
        (
            {"decode": {"scorers": [{"use": "kv-utilization", "weight": 0}]}},
            ("decode", "scorers", 0, "weight"),
            "a weight is a positive number, not 0",
        ),
        (
            {"decode": {"scorers": [{"use": "kv-utilization", "weight": float("nan")}]}},
            ("decode", "scorers", 0, "weight"),
            "a weight is a positive number, not nan",
        ),
        (
            {"decode": {"scorers": [{"use": "kv-utilization", "weight": True}]}},
            ("decode", "scorers", 0, "weight"),
            "a weight is a positive number, not True",
        ),
        (
            {"decode": {"filters": [{"use": "kv-capacity", "weight": 2}]}},
            ("decode", "filters", 0, "weight"),
            "only scorers have a weight",
        ),
        (
            {"decode": {"filters": [{"use": "kv-capacity", "worth": "2s"}]}},
            ("decode", "filters", 0, "worth"),
            "only scorers have a worth",
        ),
        (
            {"decode": {"scorers": ["transfer-cost"]}},
            ("decode", "scorers", 0, "use"),
            "'transfer-cost' scores in 'seconds', and mode 'immediate' takes share (give it a rate, such as "
            "`worth: 200ms` (seconds that are a whole share), or use another scorer)",
        ),
        (
            {"decode": {"scorers": [{"use": "transfer-cost", "worth": 3}]}},
            ("decode", "scorers", 0, "worth"),
            "3 is not a duration; write a number with its unit",
        ),
        (
            {"decode": {"scorers": [{"use": "transfer-cost", "worth": "0s"}]}},
            ("decode", "scorers", 0, "worth"),
            "a worth is more than zero",
        ),
        (
            {"decode": {"scorers": [{"use": "queue-depth", "worth": "1s"}]}},
            ("decode", "scorers", 0, "worth"),
            "`worth` is for scorers that do not score in share (leave it out",
        ),
        (
            {"decode": {"filters": ["queue-depth"]}},
            ("decode", "filters", 0, "use"),
            "'queue-depth' does not fit under `filters` (it belongs under `scorers`)",
        ),
        ({"decode": {"picker": "kv-capacity"}}, ("decode", "picker", "use"), "it belongs under `filters`"),
        ({"decode": {"picker": "edf"}}, ("decode", "picker", "use"), "it belongs under `order`"),
        ({"decode": {"picker": "collections:Counter"}}, ("decode", "picker", "use"), "constructor"),
        ({"decode": {"picker": "json:loads"}}, ("decode", "picker", "use"), "'json:loads' is no class"),
        (
            {"prefill": {"scorers": ["prefix-affinity"]}},
            ("prefill", "scorers"),
            "add a scorer that measures load, such as token-load",
        ),
        (
            {"prefill": {"scorers": ["session-affinity", "prefix-affinity"]}},
            ("prefill", "scorers"),
            "SessionAffinity is the whole ranking",
        ),
    ],
)
def test_a_mistake_is_told_where_it_is(profile, path, says):
    found, text = only(profile)
    assert found == path
    assert says in text


def test_all_mistakes_are_found_at_once():
    found = refused(
        {
            "mod": "immediate",
            "prefill": {"filters": [{"use": "queue-depth-limit", "max": 0, "foo": 1}], "picker": "max-scor"},
            "decode": {"scorers": [{"use": "token-load", "weight": -1, "scale_tokens": 0}, "nope"]},
        }
    )
    assert found.keys() == {
        ("mod",),
        ("prefill", "filters", 0, "max"),
        ("prefill", "filters", 0, "foo"),
        ("prefill", "picker", "use"),
        ("decode", "scorers", 0, "weight"),
        ("decode", "scorers", 0, "scale_tokens"),
        ("decode", "scorers", 1, "use"),
    }


OWN = """
from typing import ClassVar
from orchestrator.policy import Field, Params


class Nested(Params):
    a: int = 1


class P(Params):
    label: str
    nested: Nested = Nested()
    sizes: list[int] = []


class Mine:
    def __init__(self, params: P) -> None:
        self.params = params
        if params.label == "bad":
            raise RuntimeError("no such label anywhere")

    def filter(self, request, candidates, context):
        return candidates


class Untyped:
    def __init__(self, params):
        pass


class Two:
    def __init__(self, params: P, more: int = 0):
        pass


class Lost:
    def __init__(self, params: "Nowhere"):
        pass


class Seconds:
    unit: ClassVar[str] = "seconds"

    def score(self, request, candidates, context):
        return [0.0] * len(candidates)


class Minutes(Seconds):
    unit = "minutes"


class Awaited:
    async def filter(self, request, candidates, context):
        return candidates


class NoUnit:
    def score(self, request, candidates, context):
        return []


class Nothing:
    pass


class OwnAffinity:
    unit = "share"
    needs_load = True

    def score(self, request, candidates, context):
        return [1.0] * len(candidates)
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path


def own(name, kind="filters", **params):
    step = {"use": f"./own.py:{name}", **params}
    return {"unified": {kind: step if kind == "picker" else [step]}}


def test_a_file_beside_the_topology(folder):
    profile = build(own("Mine", label="x", nested={"a": 2}, sizes=[1]), folder)
    (step,) = profile.unified.filters
    assert step.name == "./own.py:Mine"
    assert (step.policy.params.label, step.policy.params.nested.a) == ("x", 2)


@pytest.mark.parametrize(
    ("step", "path", "says"),
    [
        (own("Mine"), ("label",), "needs the parameter 'label'"),
        (own("Mine", label="x", nested={"b": 1}), ("nested", "b"), "has no parameter 'nested.b'"),
        (own("Mine", label="x", sizes=[1, "y"]), ("sizes", 1), "not 'y'"),
        (own("Mine", label="bad"), (), "does not start: RuntimeError: no such label anywhere"),
        (own("Mien", label="x"), ("use",), "did you mean 'Mine'?"),
        (own("Untyped"), ("use",), "must take nothing, or one argument annotated with a subclass of Params"),
        (own("Two"), ("use",), "must take nothing, or one argument"),
        (own("Lost"), ("use",), "'Nowhere' is not defined"),
        (own("Nothing"), ("use",), "under `filters` belongs a class with a method `filter`"),
        (own("Awaited"), ("use",), "`filter` is async (a decision is made at once: make it a plain function"),
    ],
)
def test_a_mistake_in_ones_own_policy(folder, step, path, says):
    found, text = only(step, folder)
    assert found == ("unified", "filters", 0, *path)
    assert says in text


@pytest.mark.parametrize(
    ("name", "path", "says"),
    [
        ("Seconds", (0, "use"), "scores in 'seconds', and mode 'immediate' takes share"),
        ("Minutes", (0, "use"), "scores in 'minutes' (a scorer's `unit` is 'share' or 'seconds')"),
        ("NoUnit", (0, "use"), "a scorer has a class attribute `unit`"),
        ("OwnAffinity", (), "OwnAffinity is the whole ranking"),
    ],
)
def test_a_scorer_of_ones_own_that_does_not_fit(folder, name, path, says):
    found, text = only(own(name, "scorers"), folder)
    assert found == ("unified", "scorers", *path)
    assert says in text


def test_a_file_that_does_not_load_keeps_its_own_file_and_line(tmp_path):
    (tmp_path / "own.py").write_text("x = 1\ny = x.no\n")
    with pytest.raises(ParamError) as caught:
        build(own("Mine"), tmp_path)
    (problem,) = caught.value.problems
    assert caught.value.paths == (("unified", "filters", 0, "use"),)
    assert (problem.file, problem.line) == (f"{tmp_path}/own.py", 2)


def test_one_policy_alone():
    assert make_policy("queue-depth-limit", {"max": 3})
    with pytest.raises(PluginError):
        make_policy("queue-depth-limi", {})
    with pytest.raises(ParamError) as caught:
        make_policy("queue-depth-limit", {"max": -1})
    assert caught.value.paths == (("max",),)
    assert caught.value.problems[0].field == "max"


def test_building_does_not_change_the_data():
    data = {"unified": {"scorers": [{"use": "queue-depth", "weight": 2}], "picker": {"use": "max-score"}}}
    before = repr(data)
    build(data)
    assert repr(data) == before


def test_a_late_profile():
    profile = build(
        {
            "mode": "late",
            "order": {"use": "moore-hodgson"},
            "prefill": {
                "filters": ["warm-up"],
                "scorers": [{"use": "session-affinity", "worth": "200ms"}, "transfer-cost"],
            },
            "late": {"hand_ahead": "20ms", "max_queue": 5, "wait_for_warm": False},
        }
    )
    assert isinstance(profile, LateProfile)
    assert profile.order.name == "moore-hodgson"
    assert [s.name for s in profile.prefill.filters] == ["warm-up"]
    assert [(s.name, s.policy.unit) for s in profile.prefill.scorers] == [
        ("session-affinity", "seconds"),
        ("transfer-cost", "seconds"),
    ]
    assert profile.headers == {"x-session-id"}
    assert profile.settings == LateSettings(hand_ahead_s=0.02, max_queue=5, wait_for_warm=False)
    assert build({"mode": "late"}).order.name == build("slo").order.name == "moore-hodgson"
    assert build({"mode": "late"}).settings == LateSettings()


def test_a_rate_makes_a_scorer_one_of_the_other_unit():
    needing = {"use": "prefix-affinity", "worth": "1s"}
    late = build({"mode": "late", "unified": {"scorers": [needing]}})
    assert late.unified.scorers[0].policy.unit == "seconds"
    immediate = build({"unified": {"scorers": [{"use": "predicted-latency", "worth": "1s", "weight": 2}]}})
    assert immediate.unified.scorers[0].policy.unit == "share"
    assert immediate.unified.scorers[0].weight == 2.0


@pytest.mark.parametrize(
    ("profile", "path", "says"),
    [
        ({"ordr": "edf"}, ("ordr",), "did you mean 'order'?"),
        ({"order": None}, ("order",), "must be a policy's name, or a mapping with `use`, not None"),
        ({"order": "eddf"}, ("order", "use"), "did you mean 'edf'?"),
        ({"order": {"use": "edf", "x": 1}}, ("order", "x"), "edf takes no parameters"),
        ({"order": {"use": "edf", "weight": 1}}, ("order", "weight"), "only scorers have a weight"),
        ({"order": "queue-depth"}, ("order", "use"), "it belongs under `scorers`"),
        ({"unified": {"scorers": ["edf"]}}, ("unified", "scorers", 0, "use"), "it belongs under `order`"),
        (
            {"decode": {"picker": "max-score"}},
            ("decode", "picker"),
            "mode 'late' has no picker (leave it out: who costs the least is taken)",
        ),
        (
            {"unified": {"scorers": ["queue-depth"]}},
            ("unified", "scorers", 0, "use"),
            "'queue-depth' scores in 'share', and mode 'late' takes seconds (give it a rate, such as "
            "`worth: 200ms` (what a share of 0 costs), or use another scorer)",
        ),
        (
            {"unified": {"scorers": [{"use": "transfer-cost", "weight": 2}]}},
            ("unified", "scorers", 0, "weight"),
            "mode 'late' has no weights (seconds are added as they are",
        ),
        (
            {"unified": {"scorers": [{"use": "transfer-cost", "worth": "1s"}]}},
            ("unified", "scorers", 0, "worth"),
            "`worth` is for scorers that do not score in seconds",
        ),
        ({"decode": {"scorer": []}}, ("decode", "scorer"), "did you mean 'scorers'?"),
        ({"decode": "x"}, ("decode",), "must be a mapping of filters, scorers, not 'x'"),
        ({"late": 3}, ("late",), "must be a mapping of candidates, others, hand_ahead"),
        ({"late": {"candidats": 3}}, ("late", "candidats"), "did you mean 'candidates'?"),
        ({"late": {"candidates": 0}}, ("late", "candidates"), "greater than or equal to 1, not 0"),
        ({"late": {"hand_ahead": 0.02}}, ("late", "hand_ahead"), "0.02 is not a duration; write"),
        ({"late": {"on_time_quantile": 1}}, ("late", "on_time_quantile"), "less than 1, not 1"),
    ],
)
def test_a_mistake_in_a_late_profile_is_told_where_it_is(profile, path, says):
    found, text = only({"mode": "late", **profile})
    assert found == path
    assert says in text


def test_every_setting_of_late_binding_can_be_written():
    assert {f.removesuffix("_s") for f in LateSettings.__dataclass_fields__} == set(LateParams.model_fields)


def test_roles_of_a_profile_are_those_that_are_routed():
    profile = build("default")
    assert all(hasattr(profile, role.value) for role in Role if role is not Role.ENCODE)
