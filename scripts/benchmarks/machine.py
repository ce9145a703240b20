"""What a benchmark ran on, so that its figures can be read."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The checkout."""


@dataclass(frozen=True, slots=True)
class Machine:
    """Processor, cores, memory, kernel, interpreter; the revision measured; load average when it began."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    revision: str
    date: str
    load_average: float

    def line(self) -> str:
        """In one sentence."""
        return (
            f"{self.processor}, {self.cores} cores, {self.memory_gib:g} GiB, Linux {self.kernel}, "
            f"Python {self.python}; pdctl at {self.revision}, {self.date}, load average "
            f"{self.load_average:.2f} when it began."
        )

    def data(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def processor(cpuinfo: str) -> str:
    """The processor's name from the text of /proc/cpuinfo."""
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.M)
    return " ".join(found[1].split()) if found else platform.machine()


def revision() -> str:
    """The commit, with a + where files differ from it."""
    git = ("git", "-C", str(ROOT))
    told = [
        subprocess.run([*git, *words], check=False, capture_output=True, text=True).stdout.strip()
        for words in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    ]
    return (told[0] or "unknown") + ("+" if told[1] else "")


def describe() -> Machine:
    """This machine, now."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Machine(
        processor=processor(Path("/proc/cpuinfo").read_text()),
        cores=os.cpu_count() or 1,
        memory_gib=round(pages / 2**30, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        revision=revision(),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        load_average=os.getloadavg()[0],
    )
