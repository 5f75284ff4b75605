"""What OpenVINO cannot run: one sentence, and remembered, because it takes long to find out."""

import json
from importlib.metadata import version
from pathlib import Path

from backend.errors import DerbyError
from backend.models.files import ModelFiles

#: Stands in a prepared folder in the place of the IR.
FILE = "refused.json"

#: What converts: with another version of one of them, a conversion may succeed.
CONVERTERS = ("optimum-intel", "optimum", "transformers", "torch", "openvino", "nncf")


class RefusedError(DerbyError):
    """The model cannot be converted, and would not be if that were tried again."""


def architecture(files: ModelFiles) -> str:
    config = json.loads((files.folder / "config.json").read_text(encoding="utf-8"))
    return str(config.get("model_type", "unknown"))


def unsupported(files: ModelFiles, lacking: str) -> RefusedError:
    """Why the model cannot run; it names the torch engine only if that could run it."""
    from backend.engines.torch.engine import runs_on_torch

    remedy = "the torch engine or another model"
    if files.ready_made or not runs_on_torch(files.folder):
        remedy = "another model"
    return RefusedError(
        f"The architecture {architecture(files)!r} cannot run on OpenVINO here ({lacking}): "
        f"choose {remedy}."
    )


def remember(folder: Path, error: RefusedError) -> None:
    """Have this be all that the folder holds."""
    for path in folder.iterdir():
        path.unlink()
    content = {"sentence": str(error), "versions": _versions()}
    (folder / FILE).write_text(json.dumps(content), encoding="utf-8")


def is_outdated(folder: Path) -> bool:
    """Whether it holds a refusal of other versions than those that are installed."""
    return bool(content := _content(folder)) and content["versions"] != _versions()


def require_converted(folder: Path) -> None:
    """Raise RefusedError if the folder holds a refusal."""
    if content := _content(folder):
        raise RefusedError(str(content["sentence"]))


def _content(folder: Path) -> dict[str, object]:
    path = folder / FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _versions() -> dict[str, str]:
    return {name: version(name) for name in CONVERTERS}
