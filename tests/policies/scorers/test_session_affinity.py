"""session-affinity: one session, one endpoint, and few that move when endpoints come and go."""

from collections import Counter

from orchestrator.policy.build import make_policy
from orchestrator.policy.testing import make_context, make_endpoint, make_request


def policy(**params):
    return make_policy("session-affinity", params)


def scores(session, ids, scorer=None, header="x-session-id"):
    endpoints = [make_endpoint(i) for i in ids]
    request = make_request(headers={header: session} if session is not None else {})
    shares = (scorer or policy()).score(request, endpoints, make_context(endpoints))
    return dict(zip(ids, shares, strict=True))


def home(session, ids):
    shares = scores(session, ids)
    return max(shares, key=shares.__getitem__)


def test_a_session_has_an_order_of_endpoints_whatever_theirs():
    shares = scores("alice", "abcd")
    assert sorted(shares.values(), reverse=True) == [1.0, 0.5, 0.25, 0.125]
    assert scores("alice", "dcba") == shares
    assert scores("alice", "abcd", policy()) == shares


def test_sessions_spread_evenly():
    counts = Counter(home(f"user{i}", "abcd") for i in range(2000))
    assert all(400 < n < 600 for n in counts.values())


def test_one_that_leaves_moves_its_own_sessions_only_and_to_their_second_choice():
    for i in range(300):
        session = f"user{i}"
        before = scores(session, "abcd")
        after = home(session, "abc")
        expected = before if home(session, "abcd") != "d" else {k: v for k, v in before.items() if k != "d"}
        assert after == max(expected, key=expected.__getitem__)


def test_without_a_session_it_has_no_opinion():
    assert set(scores(None, "abc").values()) == {0.0}
    assert set(scores("", "abc").values()) == {0.0}


def test_the_header_is_told_to_the_router_in_lower_case():
    scorer = policy(header="X-User-Id")
    assert scorer.headers == ("x-user-id",)
    assert max(scores("alice", "abc", scorer, header="x-user-id").values()) == 1.0
