"""Where a race was run, and with what: so that whoever reads its figures can judge them."""

import platform
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from pydantic import Field

from backend.events import Count, Name
from backend.machine import cores

_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
_PROCESSORS = Path("/proc/cpuinfo")

#: This program, as its project file calls it.
PROGRAM = "decode-derby"

#: Packages on whose versions figures or texts depend.
PACKAGES = (
    "openvino",
    "torch",
    "transformers",
    "optimum-intel",
    "xllamacpp",
    "llguidance",
    "numpy",
)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The processor's name ("": unknown), how many cores' worth of time the process had, the bytes
    of memory, and the system's name and release.
    """

    processor: Name = ""
    cores: Annotated[float, Field(ge=0, le=2**16)] = 0.0
    memory: Count = 0
    system: Name = ""


@cache
def this_machine() -> Hardware:
    """The machine that this process runs on. Names neither host nor user."""
    import psutil

    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Hardware(_processor()[:200], float(cores()), psutil.virtual_memory().total, system[:200])


@cache
def versions() -> tuple[tuple[str, str], ...]:
    """Name and version of this program, of Python, and of those PACKAGES that are installed."""
    project = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    found = [(PROGRAM, str(project["version"])), ("python", platform.python_version())]
    for name in PACKAGES:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return tuple(found)


def _processor() -> str:
    try:
        lines = _PROCESSORS.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor())
