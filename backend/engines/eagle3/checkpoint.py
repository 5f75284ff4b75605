"""An EAGLE-3 checkpoint, a folder as its authors or `speculators` publish it, beside its target."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.engine import no_trained_draft
from backend.errors import DerbyError
from backend.models.files import BUILT_IN, Say, loading, model_files, model_folder, read_object
from backend.types import Layers, ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from backend.engines.eagle3.network import Eagle3, Eagle3Shape

#: The draft that comes with the built-in model.
SHIPPED = Path(__file__).parents[3] / "assets" / "draft"

CONFIG = "config.json"

#: How RoPE's frequencies may be scaled: others go by the length of the text, or scale the scores.
ROPES = ("default", "linear", "llama3")

#: Tensors that only training needs, or that repeat the map of the vocabulary.
UNUSED = ("t2d", "mask_hidden", "verifier_norm.", "verifier_lm_head.")

#: What a draft shares with its target, where it has none of its own; and the map, each draftable
#: token's distance to its id.
INPUT, OUTPUT, MAP = "embed_tokens.weight", "lm_head.weight", "d2t"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A draft in host memory: `network` is float32, its embedding as it was stored. `layers`: of
    the target, whose hidden states it reads. `vocabulary`: see DraftNetwork.
    """

    network: "Eagle3"
    layers: Layers
    vocabulary: NDArray[np.int64] | None


def draft_for(target: ModelSpec) -> Path | None:
    """The draft that was trained for this model, if there is one."""
    return SHIPPED if target.name == BUILT_IN else None


def eagle3_folder(name: str) -> Path | None:
    """The folder of the EAGLE-3 draft called `name`, here or in the Hub's cache; None: whatever the
    name stands for is no such draft, by its configuration.
    """
    try:
        folder = model_folder(name, lambda _: None, download=False)
        config = read_object(folder / CONFIG, name)
    except DerbyError:
        return None
    kinds = config.get("speculators_model_type"), config.get("architectures")
    return folder if "eagle3" in str(kinds).lower() else None


def layers_of(config: Mapping[str, Any], count: int) -> Layers:
    """Those of a target with so many layers that a draft of this configuration reads."""
    key = "eagle_aux_hidden_state_layer_ids"
    stated = config.get(key) or (config.get("eagle_config") or {}).get(key)
    return tuple(stated or (2, count // 2, count - 3))


def read_checkpoint(folder: Path, target: ModelSpec, say: Say) -> Checkpoint:
    """The draft in `folder` for this target. Raises DerbyError for one that is another model's, is
    damaged, or has parts that do not run here.
    """
    import torch

    from backend.engines.eagle3.network import Eagle3

    def unfit(reason: str) -> DerbyError:
        return DerbyError(
            f"The EAGLE-3 draft {folder.name} does not fit {target.name} ({reason}): choose one "
            "that was trained for it."
        )

    files, config = model_files(target.name, say), read_object(folder / CONFIG, folder.name)
    layers, weights = layers_of(config, files.layers), _draft_weights(folder)
    if not 0 <= min(layers) <= max(layers) < files.layers:
        raise unfit(f"it reads layers {', '.join(map(str, layers))} of {files.layers}")
    states = len(layers) * files.hidden
    if "fc.weight" in weights and weights["fc.weight"].shape[1] != states:
        raise unfit(f"it reads {weights['fc.weight'].shape[1]} hidden numbers of {states}")
    offsets = weights.pop(MAP, None)
    vocabulary = None if offsets is None else np.arange(len(offsets)) + offsets.numpy()
    if vocabulary is not None and vocabulary.max() >= files.vocab_size:
        raise unfit(f"it drafts token {vocabulary.max()} of {files.vocab_size}")
    embedding = weights.pop(INPUT, None)
    embedding = tensor_of(files.folder, INPUT) if embedding is None else embedding
    if len(embedding) < files.vocab_size:
        raise unfit(f"it knows {len(embedding)} tokens of {files.vocab_size}")
    if OUTPUT not in weights:
        output = tensor_of(files.folder, OUTPUT, INPUT)
        weights[OUTPUT] = output if vocabulary is None else output[torch.from_numpy(vocabulary)]
    shape = _shape(config, folder, states, len(weights[OUTPUT]))
    with torch.device("meta"):
        network = Eagle3(shape, embedding)
    try:
        weights = {name: weight.float() for name, weight in weights.items()}
        keys = network.load_state_dict(weights, strict=False, assign=True)
    except RuntimeError as error:
        raise unfit(str(error).splitlines()[-1].strip()) from error
    if keys.unexpected_keys:
        raise unsupported(folder, f"the tensor {keys.unexpected_keys[0]}")
    if keys.missing_keys:
        raise damaged(folder, f"no tensor {keys.missing_keys[0]}")
    return Checkpoint(network.eval().requires_grad_(requires_grad=False), layers, vocabulary)


def unsupported(folder: Path, part: str) -> DerbyError:
    return DerbyError(
        f"The EAGLE-3 draft {folder.name} has {part}, which does not run here: choose one with "
        "the layers of Llama."
    )


def damaged(folder: Path, reason: str) -> DerbyError:
    return DerbyError(
        f"The EAGLE-3 draft {folder.name} is damaged or incomplete ({reason:.100}): fetch it again."
    )


def _shape(config: dict[str, Any], folder: Path, states: int, vocabulary: int) -> "Eagle3Shape":
    """The network of this configuration, whose sizes stand in a part of it if `speculators` wrote
    it.
    """
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    from backend.engines.eagle3.network import Eagle3Shape

    with loading(folder.name, f"The {CONFIG} of {folder.name} cannot be read"):
        layer: Any = LlamaConfig(**(config.get("transformer_layer_config") or config))
        rope: Any = layer.rope_parameters
        rotary: Any = LlamaRotaryEmbedding(layer)
    odd = {
        f"RoPE of the type {rope['rope_type']}": rope["rope_type"] not in ROPES,
        f"the activation {layer.hidden_act}": layer.hidden_act != "silu",
        "a normalised output": config.get("norm_output"),
        f"{layer.num_hidden_layers} layers": layer.num_hidden_layers != 1,
        "sliding layers": set(getattr(layer, "layer_types", None) or ()) - {"full_attention"},
    }
    for part in (part for part, there in odd.items() if there):
        raise unsupported(folder, part)
    return Eagle3Shape(
        layer.hidden_size,
        states,
        layer.num_attention_heads,
        layer.num_key_value_heads,
        layer.head_dim,
        layer.intermediate_size,
        vocabulary,
        layer.rms_norm_eps,
        rope["rope_theta"],
        bool(config.get("norm_before_residual")),
        tuple(rotary.inv_freq.tolist()),
    )


def _draft_weights(folder: Path) -> dict[str, "Tensor"]:
    """Its tensors by their names in Eagle3: `speculators` counts layers."""
    from safetensors import SafetensorError

    try:
        return {
            name.replace("layers.0.", "midlayer.", 1): tensor
            for name, tensor in _tensors(folder)
            if not name.startswith(UNUSED)
        }
    except (OSError, SafetensorError) as error:
        raise damaged(folder, str(error)) from error


def tensor_of(folder: Path, *endings: str) -> "Tensor":
    """A target's tensor whose name ends in the first of these that there is. Raises DerbyError."""
    for ending in endings:
        for _, tensor in _tensors(folder, ending):
            return tensor
    raise no_trained_draft(folder.name)


def _tensors(folder: Path, ending: str = "") -> Iterable[tuple[str, "Tensor"]]:
    """Tensors of a folder's files whose names end so; they are read where they are looked at."""
    from safetensors import safe_open

    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (it is no mapping)
                if name.endswith(ending):
                    yield name, file.get_tensor(name)
