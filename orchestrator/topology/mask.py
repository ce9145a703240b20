"""A plan as it may be shown: every secret replaced by `***`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from orchestrator.engines.base import Word
from orchestrator.topology.plan import Credentials, InstancePlan, Plan, RouterPlan

MASK = "***"


def masked(plan: Plan) -> Plan:
    """`plan` without its secrets: secret words, credentials and tenants' keys are masked."""
    return replace(
        plan,
        instances=tuple(_instance(i) for i in plan.instances),
        router=None if plan.router is None else _router(plan.router),
    )


def _instance(instance: InstancePlan) -> InstancePlan:
    followers = tuple(replace(f, argv=_words(f.argv), env=_env(f.env)) for f in instance.followers)
    return replace(instance, argv=_words(instance.argv), env=_env(instance.env), followers=followers)


def shown(word: Word) -> str:
    """The word's text, or the mask."""
    return MASK if word.secret else word.text


def _words(words: tuple[Word, ...]) -> tuple[Word, ...]:
    return tuple(replace(word, text=shown(word)) for word in words)


def _env(env: Mapping[str, Word]) -> dict[str, Word]:
    return {name: replace(word, text=shown(word)) for name, word in env.items()}


def _router(router: RouterPlan) -> RouterPlan:
    keys = router.credentials
    return replace(
        router,
        argv=_words(router.argv),
        env=_env(router.env),
        credentials=Credentials(
            client_keys=tuple(MASK for _ in keys.client_keys),
            engine_key=MASK if keys.engine_key else None,
            admin_key=MASK if keys.admin_key else None,
        ),
        tenants={
            name: {**tenant, "keys": [MASK for _ in tenant.get("keys", ())]}
            for name, tenant in router.tenants.items()
        },
    )
