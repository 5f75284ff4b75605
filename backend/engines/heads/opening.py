"""Where a trained head runs: beside its target on a CUDA device, else on OpenVINO."""

from backend.engines.heads.draft import Head
from backend.engines.heads.file import HeadFile
from backend.models.files import Say
from backend.types import ModelSpec

OPENVINO = "openvino"


def place_for(target: ModelSpec) -> str:
    """The CUDA device that drafts for this target, as torch names it, or OPENVINO."""
    name = target.device.lower()
    if target.engine == "torch" and name != "cpu":
        import torch

        if torch.cuda.is_available():
            return name if ":" in name else "cuda:0"
    return OPENVINO


def open_head(file: HeadFile, target: ModelSpec, place: str, say: Say) -> Head:
    """The head of `target`, loaded. Raises DerbyError if the target's
    files cannot be had.
    """
    if place != OPENVINO:
        from backend.engines.heads.device import open_device_head

        return open_device_head(file, target, place, say)
    from backend.engines.heads.openvino import open_openvino_head

    return open_openvino_head(file, target, say)
