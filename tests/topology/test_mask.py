"""Nothing secret is shown: not in words, nor in credentials, nor through tenants."""

from __future__ import annotations

from orchestrator.topology.mask import masked
from orchestrator.topology.plan import dump, parse


def test_no_secret_is_left_in_a_masked_plan(site, pair: str) -> None:
    site.environ = {f"K{i}": f"secret-number-{i}" for i in range(5)}
    plan = site.plan(
        pair
        + "router:\n"
        + "  env: {R: '${env:K4}'}\n"
        + "  credentials: {client_keys: ['${env:K0}'], engine_key: '${env:K1}', admin_key: '${env:K2}'}\n"
        + "tenants: {t: {keys: ['${env:K3}']}}\n",
        "pools.decode.env={TOKEN: 'Bearer ${env:K4}'}",
    )
    assert dump(plan).count(b"secret-number-") >= 6
    shown = dump(masked(plan))
    assert b"secret-number-" not in shown
    assert parse(shown).router.credentials.client_keys == ("***", "***")
    assert masked(plan).instance("decode-0").env["FAKE_HOST"].text == "127.0.0.1"


def test_a_short_secret_does_not_mask_words_it_is_part_of(site, pair: str) -> None:
    site.environ = {"K": "a"}
    plan = site.plan(pair + "router: {credentials: {engine_key: '${env:K}'}}\n")
    texts = [w.text for w in masked(plan).instance("decode-0").argv]
    assert texts.count("***") == 1
    assert "fake.server" in texts


def test_a_plan_without_router_or_secrets_is_left_alone(site, pair: str) -> None:
    plan = site.plan(pair, "router.kind=none")
    assert masked(plan) == plan
