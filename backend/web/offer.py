"""What the operator of this page offers: engines, their precisions and devices, and models.

Visitors choose by label or number and never name a path; what goes back to them names none.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from backend.models.files import BUILT_IN
from backend.strategies.settings import PRECISIONS

HUB = "hub"
FAKE_MODELS = ("fake", "fake-slow", "fake-draft", "fake-loop")


@dataclass(frozen=True, slots=True)
class Runtime:
    """An engine with the precisions and devices to choose from; the first ones are the defaults."""

    engine: str
    title: str
    precisions: tuple[str, ...]
    devices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Offer:
    """`models` are names as engines take them; the first one is the default."""

    runtimes: tuple[Runtime, ...]
    models: tuple[str, ...]

    def runtime(self, engine: str) -> Runtime | None:
        return next((r for r in self.runtimes if r.engine == engine), None)

    @property
    def labels(self) -> dict[str, str]:
        """The models' keys, "0", "1", ..., and the labels to show for them."""
        return {str(i): _label(name) for i, name in enumerate(self.models)}

    def public(self, text: str) -> str:
        """`text` with the operator's paths replaced by their labels."""
        # Longest first: one folder may lie in another.
        for name in sorted(self.models, key=len, reverse=True):
            if _is_path(name):
                whole = str(Path(name).expanduser().absolute())
                for path in sorted({name, whole}, key=len, reverse=True):
                    text = text.replace(path, _label(name))
        return text


def _is_path(name: str) -> bool:
    return name.startswith((".", "~")) or Path(name).is_absolute()


def _label(name: str) -> str:
    return Path(name).expanduser().absolute().name if _is_path(name) else name


def menu(engines: Sequence[str], models: Sequence[str] = (BUILT_IN,)) -> Offer:
    """The menu of these engines on this machine. Raises KeyError for an unknown engine."""
    found = {"openvino": _openvino, "torch": _torch, "fake": _fake}
    return Offer(tuple(found[engine]() for engine in engines), tuple(models))


def _openvino() -> Runtime:
    from backend.engines.openvino.export import available_devices

    # CPU first: it is on every machine, and what the built-in figures refer to.
    devices = sorted(available_devices(), key=lambda name: name != "CPU")
    return Runtime("openvino", "OpenVINO", PRECISIONS, tuple(devices))


def _torch() -> Runtime:
    # Importing torch here would take seconds and memory only to count devices.
    cuda = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    devices = ("CUDA", "CPU", "AUTO") if cuda else ("CPU", "AUTO")
    return Runtime("torch", "PyTorch", ("fp32", "bf16", "fp16"), devices)


def _fake() -> Runtime:
    return Runtime("fake", "Fake", ("fp32",), ("CPU",))
