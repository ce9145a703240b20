"""A plan as text: commands that can be pasted into a shell, or every word with its origin."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from orchestrator.core.address import is_wildcard, join_host_port
from orchestrator.engines.base import Word
from orchestrator.topology.mask import shown
from orchestrator.topology.plan import FollowerPlan, InstancePlan, Plan, RouterPlan

if TYPE_CHECKING:
    from orchestrator.launch.changes import Changes

_ORIGIN_COLUMN = 64
ORIGINS = {
    "topology": "your file, and the line there; `--set` is the command line's",
    "profile": "the launch profile, and the line there",
    "pool": "`options` of the pool in your file",
    "role": "the engine's adapter, because of what the pool is for",
    "adapter": "the engine's adapter, whatever the pool is for",
    "encoders": "where the encode pools of this plan listen",
    "plan": "worked out from your file: model, addresses, ports, GPUs, sizes, time-outs",
    "pdctl": "how pdctl starts any process",
}
"""What the first word of an origin means (docs/topology.md says more); "a + b" is merged from both."""


def summary(plan: Plan) -> str:
    """One line: what the deployment consists of."""
    roles = Counter((i.role.value, i.engine, i.external) for i in plan.instances)
    parts = [
        f"{count} {role} ({engine}{', external' if external else ''})"
        for (role, engine, external), count in roles.items()
    ]
    router = "no router"
    if plan.router is not None:
        kind = "router" if plan.router.kind == "pdctl" else plan.router.kind
        router = f"{kind} at {plan.router.url}{_listening(plan.router)}"
    return f"{plan.name}: {' + '.join(parts)}, {router}"


def as_text(plan: Plan, *, explain: bool = False) -> Iterator[str]:
    """The lines of `pdctl plan`; with `explain`, the words with their origins instead of commands."""
    render = _explained if explain else _command
    yield f"# {summary(plan)}"
    yield f"# state: {plan.state_dir}"
    if explain:
        yield from _legend(plan)
    for instance in plan.instances:
        yield ""
        yield from _instance_head(instance)
        if not instance.external:
            yield from render(instance.argv, instance.env)
            for name, text in instance.files.items():
                yield f"# file {name}: {text}"
        for follower in instance.followers:
            yield ""
            yield from _follower_head(instance, follower)
            yield from render(follower.argv, follower.env)
    if plan.router is not None:
        yield ""
        yield from _router_head(plan.router)
        yield from render(plan.router.argv, plan.router.env)


def diff_lines(found: Changes) -> Iterator[str]:
    """`plan --diff` as text: a line for each process that `up` would touch, below it what differs."""
    for change in found.changes:
        yield f"{change.name}: {change.action.value}"
        yield from (f"  {line}" for line in change.why)
    if found.order:
        yield f"replaced {found.order}"
    if found.unchanged:
        yield f"unchanged: {', '.join(found.unchanged)}"
    if not found.changes:
        yield "`up` would change nothing"
    yield from found.notes


def _instance_head(instance: InstancePlan) -> Iterator[str]:
    facts = [instance.role.value, instance.engine]
    if instance.external:
        facts.append("external")
    else:
        facts.append(f"node {instance.node}")
    if instance.version:
        facts.append(f"version {instance.version}")
    if instance.profile:
        facts.append(f"profile {instance.profile}{'' if instance.tried else ' (untried)'}")
    if instance.devices:
        facts.append(f"GPUs {','.join(map(str, instance.devices))}")
    yield f"# {instance.name}: {', '.join(facts)}"
    ports = ", ".join(f"{purpose} {port}" for purpose, port in instance.ports.items())
    yield f"#   {instance.url}  ports: {ports}"
    if not instance.external:
        yield (
            f"#   ready within {instance.probes.ready_timeout_s:g} s, drained within {instance.drain_s:g} s, "
            f"{instance.max_restarts} restarts"
        )


def _follower_head(instance: InstancePlan, follower: FollowerPlan) -> Iterator[str]:
    facts = [f"node rank {follower.rank} of {len(instance.followers) + 1}", f"node {follower.node}"]
    if follower.devices:
        facts.append(f"GPUs {','.join(map(str, follower.devices))}")
    yield f"# {follower.name}: {', '.join(facts)}; gets no requests, ended by {instance.name}"
    ports = ", ".join(f"{purpose} {port}" for purpose, port in follower.ports.items())
    yield f"#   {follower.url or f'at {follower.address}, no HTTP'}  ports: {ports or 'none'}"


def _router_head(router: RouterPlan) -> Iterator[str]:
    yield f"# router: {router.kind}"
    yield f"#   {router.url}{_listening(router)}  admin and metrics: {router.admin_url}"
    if router.kind == "pdctl":
        keys = len(router.credentials.client_keys)
        yield f"#   clients need {f'a key ({keys} known)' if keys else 'no key'}"


def _listening(router: RouterPlan) -> str:
    """Where it listens, if its URL does not say so: the URL of a wildcard is loopback's."""
    return f", listens on {join_host_port(router.host, router.port)}" if is_wildcard(router.host) else ""


def _command(argv: Sequence[Word], env: Mapping[str, Word]) -> Iterator[str]:
    lines = [f"{name}={shlex.quote(shown(word))}" for name, word in env.items()]
    lines += [" ".join(shlex.quote(shown(word)) for word in group) for group in grouped(argv)]
    yield from " \\\n  ".join(lines).split("\n")


def _explained(argv: Sequence[Word], env: Mapping[str, Word]) -> Iterator[str]:
    for name, word in env.items():
        yield _with_origin(f"{name}={shlex.quote(shown(word))}", [word])
    for group in grouped(argv):
        yield _with_origin(" ".join(shlex.quote(shown(word)) for word in group), group)


def _legend(plan: Plan) -> Iterator[str]:
    """What the origins that occur in the plan mean."""
    processes = [p for i in plan.instances for p in i.processes]
    words = [word for p in processes for word in (*p.argv, *p.env.values())]
    if plan.router is not None:
        words += [*plan.router.argv, *plan.router.env.values()]
    kinds = {part.split()[0] for word in words for part in word.origin.split(" + ")}
    yield "# the right column says where each word comes from:"
    for kind, meaning in ORIGINS.items():
        if kind in kinds:
            yield f"#   {kind:<8}  {meaning}"


def _with_origin(text: str, words: Sequence[Word]) -> str:
    origins = ", ".join(dict.fromkeys(word.origin for word in words))
    return f"  {text:<{_ORIGIN_COLUMN}}  {origins}"


def grouped(argv: Sequence[Word]) -> list[list[Word]]:
    """Words in groups that belong on one line: the program and its module, then each flag with its values."""
    groups: list[list[Word]] = []
    flags_begun = False
    for word in argv:
        is_flag = word.text.startswith("--")
        if not groups or is_flag or (not flags_begun and word.text.startswith("-m")):
            groups.append([word])
        else:
            groups[-1].append(word)
        flags_begun = flags_begun or is_flag
    return groups
