"""systemd: a unit for each process, which runs its script, and a target for each node."""

from __future__ import annotations

from orchestrator.render.files import ROUTER, Deployment, File, Process
from orchestrator.render.scripts import KILL_MARGIN_S, about, env_example, run_scripts

RESTART_S = 5
MAX_RESTARTS = 5
"""Failed starts in a row before systemd gives up, as pdctl does by default."""


def render(deployment: Deployment) -> list[File]:
    """Units by node, in `systemd/NODE/`, and the scripts that they run."""
    processes = deployment.processes()
    files = [*env_example(deployment), *run_scripts(deployment, processes)]
    for node in dict.fromkeys(p.node for p in processes):
        here = [p for p in processes if p.node == node]
        files += [File(f"systemd/{node}/{_unit(deployment, p)}", _service(deployment, p)) for p in here]
        files.append(File(f"systemd/{node}/{_target(deployment)}", _target_unit(deployment, node, here)))
    return files


def _unit(deployment: Deployment, process: Process) -> str:
    return f"pdctl-{deployment.plan.name}-{process.name}.service"


def _target(deployment: Deployment) -> str:
    return f"pdctl-{deployment.plan.name}.target"


def _service(deployment: Deployment, process: Process) -> str:
    base = deployment.base
    window_s = int(MAX_RESTARTS * (process.ready_timeout_s + RESTART_S))
    router = f"pdctl-{deployment.plan.name}-{ROUTER}.service"
    order = [f"# The router is stopped first.\nBefore={router}"] if process.name != ROUTER else []
    if process.follows:
        # Stopped after what it comes before: process 0 ends it.
        order.append(f"Before=pdctl-{deployment.plan.name}-{process.follows}.service")
    text = "\n".join(f"# {line}" for line in about(deployment, process))
    return f"""{text}
[Unit]
Description={deployment.plan.name}: {process.name} ({process.role})
PartOf={_target(deployment)}
Wants=network-online.target
After=network-online.target
{"".join(f"{line}{chr(10)}" for line in order)}# After so many failed starts it is left, to be looked at.
StartLimitIntervalSec={window_s}
StartLimitBurst={MAX_RESTARTS}

[Service]
Type=exec
# Keys that the topology names, one NAME=VALUE a line; mode 0600.
EnvironmentFile=-{base}/env
ExecStart={base}/run/{process.name}.sh
# TERM to the leading process alone, which drains and takes its ranks along; KILL to all that is left.
KillMode=mixed
TimeoutStopSec={int(process.drain_s) + KILL_MARGIN_S}
Restart=always
RestartSec={RESTART_S}
# RDMA pins memory; a router has a socket for every request.
LimitMEMLOCK=infinity
LimitNOFILE=1048576

[Install]
WantedBy={_target(deployment)}
"""


def _target_unit(deployment: Deployment, node: str, here: list[Process]) -> str:
    name, units = _target(deployment), " ".join(_unit(deployment, p) for p in here)
    return f"""# All of {deployment.plan.name} on node {node}. Written by `pdctl render`.
# On that host, as root:
#   cp {deployment.base}/systemd/{node}/* /etc/systemd/system/ && systemctl daemon-reload
#   systemctl enable --now {units} {name}
# systemctl stop {name} drains and stops all; journalctl -u 'pdctl-{deployment.plan.name}-*' shows the logs.
[Unit]
Description={deployment.plan.name} on node {node}

[Install]
WantedBy=multi-user.target
"""
