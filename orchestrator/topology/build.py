"""The planner: a pure function from what was read to the plan, or to every reason why there is none."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orchestrator.core.address import http_url, split_http_url
from orchestrator.core.types import Role
from orchestrator.engines.base import Encoders, InstanceSpec, Probes, Setting, Word
from orchestrator.engines.told import expected
from orchestrator.errors import Problem, TopologyError
from orchestrator.topology.inputs import Inputs, Part
from orchestrator.topology.layout import Layout, lay_out, ports_of, process_name, shape_of
from orchestrator.topology.lint import lint, lint_engines
from orchestrator.topology.lint_fabric import lint_fabric
from orchestrator.topology.nearby import nearby
from orchestrator.topology.otherrole import Form, with_other_role
from orchestrator.topology.plan import RAY, FollowerPlan, InstancePlan, Plan
from orchestrator.topology.prior import as_fact
from orchestrator.topology.router_plan import plan_router
from orchestrator.topology.rulebook import rulebook
from orchestrator.topology.settings import as_settings, layered
from orchestrator.topology.silence import settle, silenced_in
from orchestrator.topology.words import marked, marked_env, run_by


def build(inputs: Inputs) -> Plan:
    """The plan. Raises TopologyError with every finding of placement, lint and the adapters at once."""
    layout = lay_out(inputs)
    known = rulebook(part.adapter for part in inputs.parts)
    problems = [*inputs.found, *layout.problems, *lint(inputs)]
    if layout.problems:
        raise TopologyError(_errors(settle(inputs, problems, known)[0]))
    encoders = _encoders(inputs, layout)
    specs = {part.name: _specs(inputs, part, layout, encoders) for part in inputs.parts}
    problems += [*lint_engines(inputs, specs), *lint_fabric(inputs, _processes(inputs, specs, layout))]
    instances: list[InstancePlan] = []
    for part in inputs.parts:
        for spec in specs[part.name]:
            try:
                instances.append(_instance(inputs, part, spec, layout))
            except TopologyError as error:
                problems += [_placed(inputs, part, p) for p in error.problems]
    router = None
    kept, silenced = settle(inputs, problems, known)
    if not _errors(kept):
        router, more = plan_router(inputs, instances)
        kept += more
    if errors := _errors(kept):
        raise TopologyError(errors)
    return Plan(
        name=inputs.topology.name,
        file=inputs.file,
        base_dir=str(inputs.folder.base),
        state_dir=inputs.state_dir,
        seed=_seed(inputs),
        instances=tuple(instances),
        launcher=inputs.topology.launcher,
        ray_address=inputs.topology.ray.address if inputs.topology.launcher == RAY else "",
        router=router,
        warnings=tuple(str(p) for p in _in_order(list(dict.fromkeys(kept)))),
        silenced=tuple(map(str, silenced)),
    )


def _errors(problems: Sequence[Problem]) -> list[Problem]:
    return _in_order([p for p in dict.fromkeys(problems) if p.severity == "error"])


def _in_order(problems: Sequence[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda p: (p.file or "", p.line or 0))


def _seed(inputs: Inputs) -> int:
    if inputs.topology.seed is not None:
        return inputs.topology.seed
    digest = hashlib.sha256(inputs.topology.name.encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _encoders(inputs: Inputs, layout: Layout) -> dict[str, Encoders]:
    """The encode instances by the protocol they speak; those of several pools together."""
    addresses = {n.name: n.address for n in inputs.topology.hosts}
    found: dict[str, Encoders] = {}
    for part in inputs.parts:
        if part.pool.role is not Role.ENCODE or not part.pool.size:
            continue
        if part.pool.external is not None:
            urls = [http_url(*split_http_url(external.url)) for external in part.pool.external]
        else:
            names = [name for _, name in part.instances()]
            urls = [http_url(addresses[layout.seats[n][0].node], layout.ports[n]["http"]) for n in names]
        known = found.setdefault(part.dialect, Encoders((), part.transfer, dict(part.pool.options)))
        found[part.dialect] = replace(known, urls=(*known.urls, *urls))
    return found


def _specs(
    inputs: Inputs, part: Part, layout: Layout, encoders: Mapping[str, Encoders]
) -> tuple[InstanceSpec, ...]:
    made = _unaided(inputs, part, layout)
    if part.pool.role is Role.ENCODE:
        return made
    return tuple(replace(spec, encoders=encoders.get(part.dialect)) for spec in made)


def _processes(
    inputs: Inputs, specs: Mapping[str, Sequence[InstanceSpec]], layout: Layout
) -> dict[str, list[InstanceSpec]]:
    """Every process of the launched instances, those on further nodes too, by pool."""
    return {
        part.name: [
            spec if rank == 0 else _launched_spec(inputs, part, spec.index, spec.name, layout, rank)
            for spec in specs[part.name]
            for rank in (0, *_ranks(spec))
        ]
        for part in inputs.parts
        if part.pool.external is None
    }


def _unaided(inputs: Inputs, part: Part, layout: Layout) -> tuple[InstanceSpec, ...]:
    """The specs of a pool, but for who encodes for it."""
    made = []
    for index, name in part.instances():
        if part.pool.external is not None:
            made.append(_external_spec(inputs, part, index, name))
        else:
            made.append(_launched_spec(inputs, part, index, name, layout, 0))
    return tuple(made)


def _base_spec(inputs: Inputs, part: Part, index: int, name: str) -> InstanceSpec:
    topology, pool = inputs.topology, part.pool
    runtime = pool.runtime.version if pool.runtime else None
    engine_key = topology.router.credentials.engine_key
    return InstanceSpec(
        name=name,
        pool=part.name,
        role=pool.role,
        index=index,
        model_path=inputs.folder.if_path(topology.model.path or ""),
        served_name=topology.served_name,
        address="",
        bind="",
        ports={},
        shape=shape_of(part),
        transfer=part.transfer,
        version=runtime or inputs.versions.get(part.name),
        key=engine_key.get_secret_value() if engine_key else None,
        disaggregated=pool.role is not Role.UNIFIED,
        options=dict(pool.options),
        revision=topology.model.revision,
        table=inputs.tables.get(part.name),
        vocab_size=inputs.vocab_size,
        drain_s=part.profile.drain_s if pool.drain_timeout is None else pool.drain_timeout,
        patience_s=max(topology.router.timeouts.prefill, topology.router.timeouts.first_token),
        kv_events=pool.kv_events,
    )


def _external_spec(inputs: Inputs, part: Part, index: int, name: str) -> InstanceSpec:
    assert part.pool.external is not None
    external = part.pool.external[index]
    host, port = split_http_url(external.url)
    ports = {"http": port}
    if external.bootstrap_port is not None:
        ports["bootstrap"] = external.bootstrap_port
    return replace(_base_spec(inputs, part, index, name), address=host, bind=host, ports=ports)


def _launched_spec(
    inputs: Inputs, part: Part, index: int, name: str, layout: Layout, rank: int
) -> InstanceSpec:
    """The spec of one process of an instance, on the node where it runs."""
    seats = layout.seats[name]
    nodes = {n.name: n for n in inputs.topology.hosts}
    node, head = nodes[seats[rank].node], nodes[seats[0].node]
    node_index = inputs.topology.hosts.index(node)
    heads = {need.purpose for need in ports_of(part, len(seats)) if need.head}
    shared = {p: port for p, port in layout.ports[name].items() if p in heads}
    return replace(
        _base_spec(inputs, part, index, name),
        address=node.address,
        bind=node.address,
        ports=shared | layout.ports[process_name(name, rank)] if rank else dict(layout.ports[name]),
        shape=shape_of(part, len(seats)),
        flags=layered(part.profile.flags, _written(inputs, (*part.place, "flags"), part.pool.flags)),
        env=layered(
            part.profile.env,
            _written(inputs, ("nodes", node_index, "env"), node.env),
            _written(inputs, (*part.place, "env"), part.pool.env),
        ),
        devices=seats[rank].gpus,
        rank=rank,
        head_address=head.address if len(seats) > 1 else None,
        node=node.name,
        folder=f"{inputs.state_dir}/files",
        **nearby(inputs.fabrics.get(node.name), node, seats[rank].gpus, part.over_tcp),
    )


def _written(inputs: Inputs, place: tuple[str | int, ...], values: Mapping[str, Any]) -> dict[str, Setting]:
    return as_settings(
        values, lambda name: f"topology {inputs.source.origin((*place, name))}", flags=place[-1] == "flags"
    )


def _instance(inputs: Inputs, part: Part, spec: InstanceSpec, layout: Layout) -> InstancePlan:
    pool, profile, adapter = part.pool, part.profile, part.adapter
    external = pool.external is not None
    node = "" if external else layout.seats[spec.name][0].node
    argv, env, files = ((), {}, {}) if external else _command(inputs, part, spec)
    made = InstancePlan(
        name=spec.name,
        pool=part.name,
        role=spec.role,
        engine=pool.engine,
        model=spec.served_name,
        node=node,
        url=http_url(spec.address, spec.ports["http"]),
        argv=argv,
        env=env,
        ports=spec.ports,
        probes=_probes(part, spec),
        facts=_facts(inputs, part, spec),
        labels=_labels(inputs, part, node),
        devices=spec.devices,
        options=spec.options,
        hints=adapter.hints,
        version=spec.version,
        profile=profile.name,
        tried=profile.tried,
        external=external,
        disaggregated=spec.disaggregated,
        files=files,
        max_restarts=profile.max_restarts if pool.max_restarts is None else pool.max_restarts,
        drain_s=spec.drain_s,
        silenced=silenced_in(inputs, part.name),
        expects=expected(adapter, spec, external),
        wrapped=pool.runtime is not None and pool.runtime.command is not None,
    )
    if external:
        return replace(made, digest=_digest(made), no_other="it is external, and others may use it")
    made = with_other_role(made, part.adapter, spec, lambda other: _in_role(inputs, part, other))
    return _with_followers(made, [_follower(inputs, part, spec, layout, rank) for rank in _ranks(spec)])


def _in_role(inputs: Inputs, part: Part, spec: InstanceSpec) -> Form:
    return _probes(part, spec), _facts(inputs, part, spec), expected(part.adapter, spec, False)


def _ranks(spec: InstanceSpec) -> range:
    """The node ranks of an instance but the first."""
    return range(1, spec.shape.nnodes)


def _probes(part: Part, spec: InstanceSpec) -> Probes:
    probes = part.adapter.probes(spec)
    ready_timeout_s = part.pool.ready_timeout or part.profile.ready_timeout_s
    return probes if ready_timeout_s is None else replace(probes, ready_timeout_s=ready_timeout_s)


def _follower(inputs: Inputs, part: Part, head: InstanceSpec, layout: Layout, rank: int) -> FollowerPlan:
    spec = _launched_spec(inputs, part, head.index, head.name, layout, rank)
    spec = replace(spec, encoders=head.encoders)
    argv, env, files = _command(inputs, part, spec)
    name = process_name(head.name, rank)
    own = layout.ports[name]
    made = FollowerPlan(
        name=name,
        rank=rank,
        node=layout.seats[head.name][rank].node,
        address=spec.address,
        url=http_url(spec.address, own["http"]) if "http" in own else "",
        argv=argv,
        env=env,
        ports=own,
        probes=_probes(part, spec),
        devices=spec.devices,
        files=files,
    )
    return replace(made, digest=_digest(made))


def _with_followers(made: InstancePlan, followers: Sequence[FollowerPlan]) -> InstancePlan:
    """`made` with its digest. Processes of one instance go together: each one's digest covers all of them."""
    digest = _digest(made)
    if not followers:
        return replace(made, digest=digest)
    whole = "".join([digest, *(f.digest for f in followers)])
    digests = [hashlib.sha256(f"{rank} {whole}".encode()).hexdigest() for rank in range(len(followers) + 1)]
    named = (replace(f, digest=d) for f, d in zip(followers, digests[1:], strict=True))
    return replace(made, digest=digests[0], followers=tuple(named))


def _command(
    inputs: Inputs, part: Part, spec: InstanceSpec
) -> tuple[tuple[Word, ...], dict[str, Word], Mapping[str, str]]:
    """The whole command line and environment, and the files they name; a variable set to null goes, whoever
    set it."""
    dropped = {name for name, setting in spec.env.items() if setting.value is None}
    kept = {name: setting for name, setting in spec.env.items() if name not in dropped}
    command = part.adapter.command(replace(spec, env=kept))
    argv = run_by(inputs, part.pool.runtime, part.place, command.argv)
    env = {name: word for name, word in command.env.items() if name not in dropped}
    return marked(argv, inputs.secrets), marked_env(env, inputs.secrets), command.files


def _facts(inputs: Inputs, part: Part, spec: InstanceSpec) -> dict[str, Any]:
    """What is known beforehand; of an engine that others started, nothing that pdctl would set."""
    known = dict(part.adapter.facts(spec))
    if part.pool.external is not None:
        # An adapter states `idle_s` because it rendered the keep-alive time-out behind it.
        known.pop("idle_s", None)
    known |= {name: n for name, n in (("dp_size", spec.shape.dp), ("pp_size", spec.shape.pp)) if n > 1}
    if part.pool.may_prefill:
        known["may_prefill"] = True
    if part.pool.kv_events:
        known["kv_events"] = True
        if part.pool.external is not None:
            own = part.pool.external[spec.index].model_dump(include={"kv_events_url", "kv_replay_url"})
            known |= {name: url for name, url in own.items() if url is not None}
    prior = None if spec.role is Role.ENCODE else part.profile.prior
    if prior is not None and prior.holds_for(inputs.topology.model.path or spec.served_name, spec.shape.tp):
        named = (spec.transfer, known.get("transfer"))
        pace: Callable[[InstanceSpec], float] = getattr(part.adapter, "pace", lambda _: 1.0)
        known["prior"] = as_fact(prior, [t for t in named if isinstance(t, str)], pace(spec))
    return known


def _labels(inputs: Inputs, part: Part, node: str) -> dict[str, str]:
    if not node:
        return dict(part.pool.labels)
    host = next(n for n in inputs.topology.hosts if n.name == node)
    rack = {} if host.rack is None else {"rack": host.rack}
    return {"node": node, **rack, **host.labels, **part.pool.labels}


def _digest(made: InstancePlan | FollowerPlan) -> str:
    """A SHA-256 over all that a running process was given."""
    what = {
        "argv": [word.text for word in made.argv],
        "env": {name: word.text for name, word in made.env.items()},
        "node": made.node,
        "url": made.url,
        **({"address": made.address} if isinstance(made, FollowerPlan) else {"cwd": made.cwd}),
        "ports": made.ports,
    }
    if made.files:
        what["files"] = dict(made.files)
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()


def _placed(inputs: Inputs, part: Part, problem: Problem) -> Problem:
    """An adapter's finding with the pool's line, unless it says itself where it lies."""
    if problem.file is not None:
        return problem
    at = inputs.source.problem(part.place, problem.message)
    return replace(problem, file=at.file, line=at.line, field=problem.field or at.field)
