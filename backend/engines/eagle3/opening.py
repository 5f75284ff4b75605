"""Where an EAGLE-3 draft runs: on its target's CUDA device, or else on OpenVINO."""

from pathlib import Path

from backend.engines.draft import OpenNetwork
from backend.engines.eagle3.checkpoint import read_checkpoint
from backend.models.files import Say
from backend.types import ModelSpec


def cuda_device(target: ModelSpec) -> str:
    """The CUDA device that drafts for this target, as torch names it; "": OpenVINO does."""
    name = target.device.lower()
    if target.engine == "torch" and name != "cpu":
        import torch

        if torch.cuda.is_available():
            return name if ":" in name else "cuda:0"
    return ""


def open_eagle3(folder: Path, target: ModelSpec, say: Say) -> OpenNetwork:
    """What opens the draft in `folder` for a text. Raises DerbyError: see read_checkpoint."""
    checkpoint = read_checkpoint(folder, target, say)
    if device := cuda_device(target):
        from backend.engines.eagle3.torch import TorchDraft

        return TorchDraft(checkpoint, device).open
    from backend.engines.eagle3.openvino import OpenVINODraft

    return OpenVINODraft(checkpoint).open
