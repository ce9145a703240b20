"""Shell: a script for each process, and one for each node that starts, watches and drains them all."""

from __future__ import annotations

import shlex

from orchestrator.render.files import FILES, ROUTER, Deployment, File, Process, grouped, quoted

KILL_MARGIN_S = 10
"""Seconds between the end of a process's own drain and KILL."""

_LIBRARY = r"""# Functions of the start scripts, written by `pdctl render`: start, wait, and stop in order.
declare -A pid=()

# begin NAME COMMAND...: start it in a session of its own, its output in $logs/NAME.log.
begin() {
  local name=$1
  shift
  setsid "$@" >>"$logs/$name.log" 2>&1 &
  pid[$name]=$!
  echo "$name: pid ${pid[$name]}, output in $logs/$name.log"
}

# ended NAME: whether its process is gone.
ended() { ! kill -0 "${pid[$1]}" 2>/dev/null; }

# finish SECONDS NAME...: wait so long for them to end by themselves, then kill what is left of them.
finish() {
  local left=$(($1 * 5)) name
  shift
  for name in "$@"; do
    while ! ended "$name" && ((left-- > 0)); do sleep 0.2; done
    # Its children too: they are in its process group.
    kill -KILL -- "-${pid[$name]}" 2>/dev/null
    echo "$name: stopped"
  done
}

# term NAME...: ask them to drain and end.
term() {
  local name
  for name in "$@"; do kill -TERM "${pid[$name]}" 2>/dev/null; done
}

# watch: return when one of them has ended, and say which.
watch() {
  local name
  wait -n
  for name in "${!pid[@]}"; do
    if ended "$name"; then echo "$name has ended; see $logs/$name.log"; fi
  done
}
"""


def run_scripts(deployment: Deployment, processes: list[Process]) -> list[File]:
    """A script for each process: environment, command line, and what to know of it."""
    variables = deployment.address_variables()
    defaults = {variables[node]: address for node, address in deployment.addresses.items()}
    return [
        File(f"run/{process.name}.sh", _script(deployment, process, defaults), executable=True)
        for process in processes
    ]


def _script(deployment: Deployment, process: Process, defaults: dict[str, str]) -> str:
    lines = ["#!/bin/sh", *(f"# {line}" for line in about(deployment, process)), "set -eu"]
    for name in process.variables:
        if name in defaults:
            lines.append(f': "${{{name}:={defaults[name]}}}"')
        elif name == FILES:
            lines += _files(process)
        else:
            lines.append(f': "${{{name}:?holds a key of the topology; set it}}"')
    lines += [
        f"export {name}={quoted(value)}"
        for name, value in process.env.items()
        # The router's own keys are there already, under the very names that the topology reads.
        if quoted(value) != f'"${{{name}}}"'
    ]
    lines += [f"export {name}" for name, value in process.env.items() if quoted(value) == f'"${{{name}}}"']
    if process.cwd:
        lines.append(f"cd {shlex.quote(process.cwd)}")
    command = [" ".join(quoted(word) for word in group) for group in grouped(process.words)]
    lines.append("exec " + " \\\n  ".join(command))
    return "\n".join(lines) + "\n"


def _files(process: Process) -> list[str]:
    """Write the files that a process is given, beside the folder of its script unless told otherwise."""
    lines = [f': "${{{FILES}:=$(cd "$(dirname "$0")/.." && pwd)/files}}"', f'mkdir -p "${FILES}"']
    for name, text in process.files.items():
        end = next(e for e in ("END", *(f"END_{n}" for n in range(len(text) + 1))) if e not in text)
        lines += [f"cat >\"${FILES}\"/{shlex.quote(name)} <<'{end}'", text.rstrip("\n"), end]
    return lines


def about(deployment: Deployment, process: Process) -> list[str]:
    """What a reader should know of a process."""
    where = f"on node {process.node}"
    if process.devices:
        where += f", GPUs {','.join(map(str, process.devices))}"
    lines = [f"{process.name} of {deployment.plan.name}, {where}. Written by `pdctl render` from"]
    lines += [f"{deployment.plan.file}: change that and render anew."]
    if process.follows:
        lines += [
            f"Further process of {process.follows}, which ends it: no requests, and no TERM before that one."
        ]
    else:
        calls = [f"{c.method} {c.path}{f' on port {c.port}' if c.port else ''}" for c in process.ready]
        lines += [
            f"Ready when {' and '.join(calls)} at {process.url} says 200.",
            f"That takes {process.ready_timeout_s:g} s at most.",
        ]
        lines += [f"TERM drains it, which takes up to {process.drain_s:g} s; KILL only after that."]
    if process.ports:
        lines += ["Ports: " + ", ".join(f"{purpose} {port}" for purpose, port in process.ports.items()) + "."]
    return lines


def start_scripts(deployment: Deployment, processes: list[Process]) -> list[File]:
    """The library, and a script for each node that runs what belongs there."""
    nodes = dict.fromkeys(p.node for p in processes)
    files = [File("lib.sh", _LIBRARY)]
    for node in nodes:
        here = [p for p in processes if p.node == node]
        files.append(File(f"start-{node}.sh", _start(deployment, node, here), executable=True))
    return files


def _start(deployment: Deployment, node: str, here: list[Process]) -> str:
    begins = "\n".join(f'begin {p.name} "$here/run/{p.name}.sh"' for p in here)
    return f"""#!/usr/bin/env bash
# Starts the processes of {deployment.plan.name} on node {node}, and waits. Written by `pdctl render`.
# TERM or Ctrl-C drains and stops them, the router first; so does the end of any one: nothing is restarted.
# Keys come from the environment, or from a file `env` beside this one (see env.example).
set -u
here=$(cd "$(dirname "$0")" && pwd)
logs=${{PDCTL_LOGS:-$here/logs}}
mkdir -p "$logs"
if [[ -f $here/env ]]; then
  set -a
  . "$here/env"
  set +a
fi
. "$here/lib.sh"

{stop_function(here)}
trap 'stop; exit 0' TERM INT

{begins}
watch
stop
exit 1
"""


def stop_function(here: list[Process]) -> str:
    """`stop`: the router, then what serves, then the further processes of instances on several nodes."""
    router = [p for p in here if p.name == ROUTER]
    heads = [p for p in here if p.name != ROUTER and not p.follows]
    followers = [p for p in here if p.follows]
    lines = ["stop() {", "  trap '' TERM INT"]
    for group in (router, heads):
        if group:
            names = " ".join(p.name for p in group)
            lines += [f"  term {names}", f"  finish {_seconds(group)} {names}"]
    if followers:
        names = " ".join(p.name for p in followers)
        lines += [
            "  # Their process 0 ends them, here or on another node; TERM is for those that it has left.",
            f"  for name in {names}; do",
            f"    for ((i = 0; i < {_seconds(followers) * 5}; i++)); do",
            '      ended "$name" && break',
            "      sleep 0.2",
            "    done",
            '    term "$name"',
            "  done",
            f"  finish {KILL_MARGIN_S} {names}",
        ]
    return "\n".join([*lines, "}"])


def _seconds(group: list[Process]) -> int:
    return int(max(p.drain_s for p in group)) + KILL_MARGIN_S


def env_example(deployment: Deployment) -> list[File]:
    """The variables that have to be set, if there are any."""
    if not deployment.secrets:
        return []
    lines = [
        "# Keys that the topology names; written by `pdctl render`. Copy this file to `env`, readable by you",
        "# alone (chmod 600 env), and fill them in.",
        *(f"{name}=" for name in deployment.secrets),
    ]
    return [File("env.example", "\n".join(lines) + "\n")]


def render(deployment: Deployment) -> list[File]:
    """Scripts to start everything by hand."""
    processes = deployment.processes()
    return [
        *env_example(deployment),
        *run_scripts(deployment, processes),
        *start_scripts(deployment, processes),
    ]
