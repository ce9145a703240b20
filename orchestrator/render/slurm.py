"""Slurm: a job with as many hosts as the topology has nodes, which runs each process's script there."""

from __future__ import annotations

from orchestrator.errors import Problem, TopologyError
from orchestrator.render.files import Deployment, File, Process
from orchestrator.render.scripts import KILL_MARGIN_S, env_example, run_scripts, start_scripts, stop_function

STOP_MARGIN_S = 60
"""Seconds before its time limit that a job is told, beyond what its longest drains take."""


_STEP = """#!/usr/bin/env bash
# Usage: step.sh SCRIPT FILE. Runs SCRIPT, and sends it TERM, once, when FILE is there, for it to drain: a
# signal by way of Slurm goes to all its children, and srun kills its step on TERM. Written by `pdctl render`.
trap : TERM
setsid "$1" &
child=$!
while kill -0 "$child" 2>/dev/null && [[ ! -e $2 ]]; do sleep 0.5; done
kill -TERM "$child" 2>/dev/null
while kill -0 "$child" 2>/dev/null; do wait "$child"; done
"""

_ADDRESS = r"""# address HOST: where the other hosts reach it.
address() {
  local told
  told=$(scontrol show node "$1" --oneliner | sed -n 's/.* NodeAddr=\([^ ]*\).*/\1/p')
  getent ahosts "${told:-$1}" | awk 'NR == 1 { print $1 }'
}
"""

_TERM = r"""# term NAME...: as in lib.sh, but through step.sh, which runs on the process's own host.
term() {
  local name
  for name in "$@"; do : >"$logs/$name.stop"; done
}
"""


def render(deployment: Deployment) -> list[File]:
    """The job's script, and those that it runs. Raises TopologyError for nodes that share an address: no host
    could be told to stand for one of them."""
    addresses = list(deployment.addresses.values())
    for node, address in deployment.addresses.items():
        if addresses.count(address) > 1:
            hint = "one node for each host that the job is to have, each with an address of its own"
            raise TopologyError([Problem(f"several nodes at {address}, {node} among them", hint=hint)])
    processes = deployment.processes()
    library = [f for f in start_scripts(deployment, processes) if f.path == "lib.sh"]
    step = File("step.sh", _STEP, executable=True)
    job = File("job.sbatch", _job(deployment, processes), executable=True)
    return [*env_example(deployment), *run_scripts(deployment, processes), *library, step, job]


def _job(deployment: Deployment, processes: list[Process]) -> str:
    plan, nodes = deployment.plan, list(deployment.addresses)
    used = {p.node for p in processes}
    gpus = max((max(p.devices, default=-1) + 1 for p in processes), default=0)
    drains = sum(sorted((int(p.drain_s) + KILL_MARGIN_S for p in processes), reverse=True)[:2])
    variables = deployment.address_variables()
    exports = "\n".join(
        f'export {variables[node]}=$(address "${{hosts[{index}]}}")' for index, node in enumerate(nodes)
    )
    begins = "\n".join(
        f"step {p.name} {nodes.index(p.node)}  # node {p.node}" for p in processes if p.node in used
    )
    gpu_lines = f"#SBATCH --gpus-per-node={gpus}\n" if gpus else ""
    gpu_step = f" --gpus-per-node={gpus}" if gpus else ""
    return f"""#!/usr/bin/env bash
# {plan.name} as one Slurm job. Written by `pdctl render` from {plan.file}.
# The {len(nodes)} nodes of the topology ({", ".join(nodes)}) become the hosts of the allocation, in order;
# their addresses are Slurm's NodeAddr, whatever the topology says. Submit with `sbatch job.sbatch`.
# `scancel --batch --signal=TERM JOB` drains and stops, as the time limit does; `scancel JOB` kills at once.
# This folder ({deployment.base}) must lie on a file system that all hosts share.
#SBATCH --job-name={plan.name}
#SBATCH --nodes={len(nodes)}
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
{gpu_lines}#SBATCH --signal=B:TERM@{drains + STOP_MARGIN_S}
#SBATCH --output=%x-%j.log
set -u
here={deployment.base}
logs=${{PDCTL_LOGS:-$here/logs}}/$SLURM_JOB_ID
mkdir -p "$logs"
# Keys that the topology names: exported where sbatch is called, or in this file (mode 0600).
if [[ -f $here/env ]]; then
  set -a
  . "$here/env"
  set +a
fi
. "$here/lib.sh"

mapfile -t hosts < <(scontrol show hostnames "$SLURM_JOB_NODELIST")

{_ADDRESS}
{exports}

# step NAME N: run a process's script on host N. Steps share the job's resources: the plan has divided them.
step() {{
  begin "$1" srun --overlap --nodes=1 --ntasks=1 --nodelist="${{hosts[$2]}}"{gpu_step} --kill-on-bad-exit=1 \\
    --job-name="$1" "$here/step.sh" "$here/run/$1.sh" "$logs/$1.stop"
}}

{_TERM}
{stop_function(processes)}
trap 'stop; exit 0' TERM INT

{begins}
watch
stop
exit 1
"""
