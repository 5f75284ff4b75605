"""A trained head's weights, and those it shares with its target, in a torch module."""

import json
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from backend.errors import DerbyError
from backend.heads.file import HeadFile
from backend.heads.torch_head import TorchHead
from backend.models.files import Say, model_files
from backend.types import ModelSpec

INPUT = "model.embed_tokens.weight"
OUTPUT = "lm_head.weight"


def torch_head(file: HeadFile, target: ModelSpec, say: Say) -> TorchHead:
    """The head, float32 on the CPU, with the embeddings of the target that `target` names."""
    embedding, output = embeddings(model_files(target.name, say).folder)
    head = TorchHead(file.shape, embedding, output[torch.from_numpy(file.tokens)])
    head.load_state_dict({name: torch.from_numpy(value) for name, value in file.weights.items()})
    return head


def embeddings(folder: Path) -> tuple[Tensor, Tensor]:
    """Input and output embeddings [V, D], float32, of the model in `folder`; one if tied."""
    table = tensor(folder, INPUT)
    tied = json.loads((folder / "config.json").read_text()).get("tie_word_embeddings", False)
    return table, table if tied else tensor(folder, OUTPUT)


def tensor(folder: Path, name: str) -> Tensor:
    """One tensor of a folder's safetensors files. Raises DerbyError if none has it."""
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            if name in file.keys():  # noqa: SIM118
                return file.get_tensor(name).float()
    raise DerbyError(
        f"The model in {str(folder)!r} has no weights {name!r}: a trained draft needs a "
        "Llama-shaped target."
    )
