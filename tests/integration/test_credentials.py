"""Three keys, kept apart: clients', the engines', the admin's (case 29); and no way in without."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

import httpx
import openai
import pytest
from asking import COMPLETION, limited
from deployment import GUARD_S, Deployment, sim

pytestmark = pytest.mark.integration

CLIENT, TENANT, ENGINE, ADMIN = (
    f"sk-{who}-0123456789abcdef" for who in ("client", "tenant", "engine", "admin")
)
KEYS = {"CLIENT_KEY": CLIENT, "TENANT_KEY": TENANT, "ENGINE_KEY": ENGINE, "ADMIN_KEY": ADMIN}
ASK = limited(COMPLETION, {"prompt": "hello"}, 8)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A pair that wants every key there is."""
    credentials = {
        "client_keys": ["${env:CLIENT_KEY}"],
        "engine_key": "${env:ENGINE_KEY}",
        "admin_key": "${env:ADMIN_KEY}",
    }
    made = Deployment(
        tmp_path_factory.mktemp("keyed"),
        {"prefill": sim("prefill"), "decode": sim("decode")},
        router={"credentials": credentials},
        tenants={"blue": {"keys": ["${env:TENANT_KEY}"]}},
    )
    made.env |= KEYS
    made.admin_key = ADMIN
    with made:
        yield made.up()


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("key", "reason"),
    [(None, "missing-key"), ("wrong", "wrong-key"), (ENGINE, "wrong-key"),
     (ADMIN, "wrong-key"), (CLIENT[:-1], "wrong-key"), (CLIENT + "x", "wrong-key")],
)  # fmt: skip
def test_clients_need_a_clients_key(keyed: Deployment, key: str | None, reason: str) -> None:
    for method, path in (("POST", COMPLETION), ("GET", "/v1/models"), ("GET", "/server_info"), ("GET", "/x")):
        answer = keyed.client.request(
            method, path, headers=bearer(key), json=ASK if method == "POST" else None
        )
        assert answer.status_code == 401
        assert answer.headers["x-pdctl-reason"] in {reason, "missing-key"}
        assert answer.headers["www-authenticate"].startswith("Bearer")
    keyed.at_rest()


@pytest.mark.parametrize("key", [CLIENT, TENANT])
def test_with_it_they_are_served(keyed: Deployment, key: str) -> None:
    assert keyed.client.post(COMPLETION, headers=bearer(key), json=ASK).status_code == 200
    with openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=key, max_retries=0, timeout=GUARD_S) as sdk:
        assert [model.id for model in sdk.models.list()] == ["demo"]
    with (
        openai.OpenAI(base_url=f"{keyed.url}/v1", api_key="no", max_retries=0, timeout=GUARD_S) as sdk,
        pytest.raises(openai.AuthenticationError),
    ):
        sdk.models.list()


def test_health_needs_none(keyed: Deployment) -> None:
    """A load balancer has no key."""
    assert keyed.client.get("/health").status_code == 200
    assert keyed.client.get("/ready").status_code == 200


def test_engines_have_a_key_of_their_own(keyed: Deployment) -> None:
    for url in keyed.engines().values():
        for key, status in ((None, 401), (CLIENT, 401), (ADMIN, 401), (ENGINE, 200)):
            answer = httpx.get(f"{url}/v1/models", headers=bearer(key), trust_env=False, timeout=GUARD_S)
            assert answer.status_code == status


def test_the_admin_listener_wants_the_admins(keyed: Deployment) -> None:
    with httpx.Client(base_url=keyed.admin_url, trust_env=False, timeout=GUARD_S) as admin:
        assert admin.get("/health").status_code == 200
        for key in (None, CLIENT, ENGINE):
            for method, path in (("GET", "/metrics"), ("GET", "/endpoints"), ("POST", "/flush_cache")):
                assert admin.request(method, path, headers=bearer(key)).status_code == 401
        assert admin.get("/metrics", headers=bearer(ADMIN)).status_code == 200
        page = bearer(ADMIN) | {"origin": "http://evil.example"}
        answer = admin.post("/flush_cache", headers=page)
        assert (answer.status_code, answer.headers["x-pdctl-reason"]) == (401, "cross-origin")
        assert admin.post("/flush_cache", headers=bearer(ADMIN)).json()["success"] is True


def test_keys_are_neither_shown_nor_lie_about(keyed: Deployment) -> None:
    commands = [("plan", "--json"), ("plan", "--explain"), ("ps",), ("logs",)]
    shown = [keyed.pdctl(*words) for words in commands]
    assert [done.returncode for done in shown] == [0] * len(commands)
    said = "".join(done.stdout + done.stderr for done in shown)
    said += "".join(keyed.log(name) for name in ("router", "controller", "prefill-0", "decode-0"))
    assert not [name for name, key in KEYS.items() if key in said]
    for path in (keyed.state.plan, keyed.state.db, keyed.state.router, keyed.state.control):
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600, path
    assert stat.S_IMODE(os.stat(keyed.state.root).st_mode) == 0o700


def test_beyond_loopback_there_is_no_way_in_without_a_key(keyed: Deployment) -> None:
    port = keyed.url.rpartition(":")[2]
    changes = (f"router.listen=0.0.0.0:{port}", "router.credentials={}", "tenants={}")
    bare = [word for change in changes for word in ("--set", change)]
    for command in (("check",), ("up", "--detach")):
        done = keyed.pdctl(*command, *bare)
        assert done.returncode == 2
        assert "router.listen" in done.stderr
        assert "no client key is demanded" in done.stderr
        assert "auth: none" in done.stderr
    assert keyed.pdctl("check", *bare, "--set", "router.auth=none").returncode == 0
    assert keyed.client.get("/health").status_code == 200, "what runs is not touched"


def test_a_key_that_is_not_set(keyed: Deployment) -> None:
    before = keyed.env.pop("ENGINE_KEY")
    try:
        done = keyed.pdctl("up", "--detach")
    finally:
        keyed.env["ENGINE_KEY"] = before
    assert done.returncode == 2
    assert "router.credentials.engine_key: the environment variable ENGINE_KEY is not set" in done.stderr
