"""A Ray cluster as the launcher needs it: nodes, an agent on each, GPUs set aside. Alone imports Ray."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from orchestrator.core.address import split_host_port
from orchestrator.errors import LaunchError
from orchestrator.launch.agent import Agent

NAMESPACE = "pdctl"
AUTO = "auto"
CONNECT_S = 5.0
"""How long the head's port may take to answer: Ray itself asks for two minutes before it gives up."""
READY_S = 30.0
"""How long an agent or a reservation may take; Ray waits without end for what it cannot give."""


class Lost(Exception):
    """An agent, or the node that it was on, does not answer."""


@dataclass(frozen=True, slots=True)
class RayNode:
    """A living node of the cluster: Ray's id for it, its address, and its resources in all."""

    id: str
    address: str
    resources: Mapping[str, float]


class Cluster(Protocol):
    """What the Ray launcher asks of a cluster. Agents are opaque; `name` is that of the actor."""

    def connect(self, address: str) -> None:
        """Reach the cluster; nothing if that is done. Raises LaunchError."""
        ...

    def nodes(self) -> Sequence[RayNode]:
        """Those that live."""
        ...

    def agent(self, name: str, node: RayNode, root: str) -> Any:
        """The agent called `name`, made on `node` if there is none. Raises Lost."""
        ...

    def ask(self, agent: Any, method: str, *args: Any) -> Any:
        """An agent's answer, waited for. Raises Lost."""
        ...

    async def call(self, agent: Any, method: str, *args: Any) -> Any:
        """An agent's answer. Raises Lost."""
        ...

    def tell(self, agent: Any, method: str, *args: Any) -> None:
        """Have an agent do something, without waiting for it."""
        ...

    def dismiss(self, agent: Any) -> None:
        """End an agent; what it has started lives on."""
        ...

    def reservations(self, prefix: str) -> Sequence[str]:
        """Names of what is set aside, those that begin with `prefix`."""
        ...

    def reserve(self, name: str, resource: str, gpus: int) -> tuple[int, ...] | None:
        """Set GPUs aside, until `release`, on the node that has `resource`: their indices, or None if there
        are not as many free."""
        ...

    def release(self, name: str) -> None:
        """Give back what was set aside."""
        ...


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise LaunchError(
            f"`launcher: ray` needs Ray ({error}): pip install 'pdctl[ray]', here and on every node",
            reason="ray-missing",
        ) from error
    return ray


@dataclass(slots=True)
class RayCluster:
    """The real one."""

    _ray: Any = field(init=False, default=None)

    def connect(self, address: str) -> None:
        """See `Cluster`."""
        if self._ray is not None:
            return
        ray = _ray()
        if address != AUTO:
            _knock(address)
        options = {"namespace": NAMESPACE, "log_to_driver": False, "logging_level": "ERROR"}
        if ray.is_initialized():
            # To another cluster, which an earlier plan named.
            ray.shutdown()
        # In another thread than the main one, Ray leaves SIGTERM alone, which is how we are stopped.
        with ThreadPoolExecutor(1) as pool:
            try:
                pool.submit(ray.init, address=address, **options).result()
            except (ConnectionError, RuntimeError, ValueError) as error:
                why = str(error).strip().splitlines()[0]
                raise LaunchError(
                    f"the Ray cluster at {address} cannot be used: {why}", reason="ray-unreachable"
                ) from error
        self._ray = ray

    def nodes(self) -> Sequence[RayNode]:
        """See `Cluster`."""
        living = [n for n in self._ray.nodes() if n["Alive"]]
        return [RayNode(n["NodeID"], n["NodeManagerAddress"], n["Resources"]) for n in living]

    def agent(self, name: str, node: RayNode, root: str) -> Any:
        """See `Cluster`."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        made = self._ray.remote(Agent).options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            # A second agent beside engines that it has not started would find them by itself, but Ray must
            # not decide when.
            max_restarts=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        agent = made.remote(root)
        self.ask(agent, "find")
        return agent

    def ask(self, agent: Any, method: str, *args: Any) -> Any:
        """See `Cluster`."""
        errors = self._ray.exceptions
        try:
            return self._ray.get(getattr(agent, method).remote(*args), timeout=READY_S)
        except (errors.RayActorError, errors.GetTimeoutError, errors.ActorUnschedulableError) as error:
            raise Lost(str(error).strip().splitlines()[0]) from error

    async def call(self, agent: Any, method: str, *args: Any) -> Any:
        """See `Cluster`."""
        try:
            return await getattr(agent, method).remote(*args)
        except self._ray.exceptions.RayActorError as error:
            raise Lost(str(error).strip().splitlines()[0]) from error

    def tell(self, agent: Any, method: str, *args: Any) -> None:
        """See `Cluster`."""
        getattr(agent, method).remote(*args)

    def dismiss(self, agent: Any) -> None:
        """See `Cluster`."""
        self._ray.kill(agent)

    def reservations(self, prefix: str) -> Sequence[str]:
        """See `Cluster`."""
        table = self._ray.util.placement_group_table()
        living = [g for g in table.values() if g["state"] != "REMOVED"]
        return [g["name"] for g in living if g["name"].startswith(prefix)]

    def reserve(self, name: str, resource: str, gpus: int) -> tuple[int, ...] | None:
        """See `Cluster`."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        ray = self._ray
        bundle = {resource: 0.001, "GPU": gpus}
        group = ray.util.placement_group([bundle], strategy="STRICT_PACK", name=name, lifetime="detached")
        inside = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
        try:
            ray.get(group.ready(), timeout=READY_S)
            task = ray.remote(given_gpus).options(num_cpus=0, num_gpus=gpus, scheduling_strategy=inside)
            given = ray.get(task.remote(), timeout=READY_S)
        except ray.exceptions.GetTimeoutError:
            ray.util.remove_placement_group(group)
            return None
        return tuple(given)

    def release(self, name: str) -> None:
        """See `Cluster`."""
        ray = self._ray
        ray.util.remove_placement_group(ray.util.get_placement_group(name))


def given_gpus() -> list[int]:
    """Which GPUs Ray has given to the task that calls this, by index."""
    import ray

    return sorted(int(gpu) for gpu in ray.get_gpu_ids())


def _knock(address: str) -> None:
    """Raise LaunchError unless something listens at `address`."""
    try:
        host, port = split_host_port(address)
    except ValueError as error:
        raise LaunchError(f"ray.address {address!r}: {error}", reason="ray-unreachable") from error
    try:
        socket.create_connection((host, port), timeout=CONNECT_S).close()
    except OSError as error:
        raise LaunchError(
            f"no Ray cluster answers at {address}: {error.strerror or error}; start its head with "
            "`ray start --head`, or correct `ray.address`",
            reason="ray-unreachable",
        ) from error
