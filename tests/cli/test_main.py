"""The entry point while it still loads the commands."""

from __future__ import annotations

import subprocess
import sys


def test_ctrl_c_while_it_loads_is_no_traceback() -> None:
    """An import hook stands for the person: it interrupts at the first module that takes time."""
    code = (
        "import os, signal, sys\n"
        "from orchestrator.cli.main import run\n"
        "class Person:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "assert 'typer' not in sys.modules\n"
        "sys.meta_path.insert(0, Person())\n"
        "run(['up'])"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
