"""What of its machine this process may use. Imports nothing of the app."""

import os
import platform
from math import inf
from pathlib import Path

#: Names by which only programs of this machine reach a server.
LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")
_CPU = Path("/proc/cpuinfo")


def quota(groups: Path = _GROUPS, own: Path = _OWN_GROUP) -> float:
    """Cores' worth of time that Linux's control groups (version 2) allow; infinite: no limit.

    `groups` and `own` are where the system shows them. A container sees its own group as topmost.
    """
    path = next((line[3:] for line in _text(own).splitlines() if line.startswith("0::")), "/")
    group, tightest = groups / path.strip("/"), inf
    for folder in (group, *group.parents):
        words = _text(folder / "cpu.max").split()
        if len(words) == 2 and all(word.isdecimal() for word in words) and int(words[1]):
            tightest = min(tightest, int(words[0]) / int(words[1]))
        if folder == groups:
            break
    return tightest


def cores() -> float:
    """Cores' worth of time that this process may use, a part of one included."""
    if hasattr(os, "sched_getaffinity"):
        return min(len(os.sched_getaffinity(0)), quota())
    return min(os.cpu_count() or 1, quota())


def threads() -> int:
    """How many threads compute as fast as this process may: one a physical core, 1 at least."""
    import psutil

    allowed = max(1, int(cores()))
    return min(psutil.cpu_count(logical=False) or allowed, allowed)


def processor() -> str:
    """The processor's name, as Linux or else Python has it; "": unknown."""
    lines = (line for line in _text(_CPU).splitlines() if line.startswith("model name"))
    return next((line.partition(":")[2].strip() for line in lines), platform.processor())


def computes_bf16(facts: Path = _CPU) -> bool:
    """Whether the processor multiplies bf16, by what Linux says of it; True where nobody says."""
    if not facts.is_file():
        return True
    return bool({"avx512_bf16", "amx_bf16", "bf16"} & set(facts.read_text().split()))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
