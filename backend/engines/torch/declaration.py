"""What the app knows of the torch engine before anything of it is loaded."""

import shutil
from pathlib import Path

from backend.engines.base import Engine
from backend.engines.declaration import EngineDeclaration, Say
from backend.engines.torch.abilities import BYTES
from backend.machine import zero_gpu
from backend.models.files import model_folder, weights_in
from backend.types import ModelSpec


def devices() -> tuple[str, ...]:
    """CUDA first where there is a driver, or a GPU is lent: importing torch to ask would take
    seconds and memory.
    """
    driver = Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None
    cuda = driver or zero_gpu()
    return ("CUDA", "CPU", "AUTO") if cuda else ("CPU", "AUTO")


def open_engine(spec: ModelSpec, say: Say) -> Engine:
    from backend.engines.torch.engine import open_torch

    return open_torch(spec, say)


def estimate_bytes(spec: ModelSpec, say: Say) -> int:
    # An unknown precision is refused when it is opened.
    return weights_in(model_folder(spec.name, say)) * BYTES.get(spec.precision, 0)


TORCH = EngineDeclaration(
    name="torch",
    title="PyTorch",
    precisions=tuple(BYTES),
    devices=devices,
    device_help="CPU, CUDA or AUTO",
    open=open_engine,
    estimate_bytes=estimate_bytes,
    exact=("fp32",),
)
