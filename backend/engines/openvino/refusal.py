"""What OpenVINO cannot run: one sentence."""

import json

from backend.errors import DerbyError
from backend.models.files import ModelFiles


class RefusedError(DerbyError):
    """The model cannot be converted as asked."""


def architecture(files: ModelFiles) -> str:
    config = json.loads((files.folder / "config.json").read_text(encoding="utf-8"))
    return str(config.get("model_type", "unknown"))


def unsupported(files: ModelFiles, lacking: str) -> RefusedError:
    """Why the model cannot run."""
    remedy = "another model" if files.ready_made else "the torch engine or another model"
    return RefusedError(
        f"The architecture {architecture(files)!r} cannot run on OpenVINO here ({lacking}): "
        f"choose {remedy}."
    )
