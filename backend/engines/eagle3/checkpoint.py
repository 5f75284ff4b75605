"""An EAGLE-3 checkpoint: a folder with config.json and model.safetensors."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backend.models.files import BUILT_IN, Say, read_object
from backend.types import Layers, ModelSpec

if TYPE_CHECKING:
    from backend.engines.eagle3.network import Eagle3

#: The draft that comes with the built-in model.
SHIPPED = Path(__file__).parents[3] / "assets" / "draft"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A draft in host memory. `layers`: of the target, whose hidden states it reads. `vocabulary`:
    the target's ids of its logits; None: the same.
    """

    network: "Eagle3"
    layers: Layers
    vocabulary: NDArray[np.int64] | None


def is_eagle3(folder: Path) -> bool:
    """Whether a folder's configuration is an EAGLE-3 draft's."""
    return "eagle3" in str(read_object(folder / "config.json", folder.name)).lower()


def draft_for(target: ModelSpec) -> Path | None:
    """The draft that was trained for this model, if there is one."""
    there = target.name == BUILT_IN and (SHIPPED / "config.json").is_file()
    return SHIPPED if there else None


def read_checkpoint(folder: Path, target: ModelSpec, say: Say) -> Checkpoint:
    """The draft in `folder` for this target."""
    import torch
    from safetensors.torch import load_file

    from backend.engines.eagle3.network import Eagle3, Eagle3Shape

    config = read_object(folder / "config.json", folder.name)
    weights = load_file(folder / "model.safetensors")
    ids = weights.pop("d2t") + torch.arange(config["draft_vocab_size"])
    layers = tuple(config["eagle_aux_hidden_state_layer_ids"])
    shape = Eagle3Shape(
        config["hidden_size"],
        weights["fc.weight"].shape[1],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
        config["intermediate_size"],
        config["draft_vocab_size"],
        config["rms_norm_eps"],
        config["rope_theta"],
        norm_before_residual=config.get("norm_before_residual", False),
    )
    network = Eagle3(shape, torch.zeros(len(weights.pop("t2d")), shape.hidden))
    named = {k.replace("midlayer.", "layers.0."): v.float() for k, v in weights.items()}
    network.load_state_dict(named)
    return Checkpoint(network.eval(), layers, ids.numpy())
