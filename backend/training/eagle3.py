"""An EAGLE-3 draft to train (arXiv 2503.01840): one decoder layer that reads the hidden states of
three of the target's layers. It is written twice, as `speculators` does, which vLLM loads, and in
the format of the method's authors, which SGLang loads.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from backend.engines.heads.file import HeadShape, shape_of
from backend.engines.heads.network import LAYER_TENSORS, Layer, Norm, TorchHead, embeddings, tensor
from backend.engines.heads.published import AUTHORS, usual_layers
from backend.errors import DerbyError
from backend.types import Layers

#: Tokens that its layer sees: all.
EVERY = 1 << 20

CONFIG, WEIGHTS = "config.json", "model.safetensors"

#: The version of `speculators` whose format this is.
VERSION = "0.9.0"


class FirstLayer(Layer):
    """A layer whose rows are a token's embedding beside the hidden state of the token before it,
    [..., 2 D]; the latter is what goes on.
    """

    def __init__(self, shape: HeadShape) -> None:
        super().__init__(shape)
        for name in ("q_proj", "k_proj", "v_proj"):
            outputs = getattr(self, name).out_features
            setattr(self, name, nn.Linear(2 * shape.hidden, outputs, bias=False))
        self.hidden_norm = Norm(shape.hidden, shape.eps)

    def normed(self, x: Tensor) -> Tensor:
        token, hidden = x.chunk(2, -1)
        return torch.cat([self.input_layernorm(token), self.hidden_norm(hidden)], -1)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        return super().finish(x.chunk(2, -1)[1], attended)


class Eagle3Head(TorchHead):
    """`features` of the target are the hidden states in front of three layers, and the last."""

    likens = False  # only the tokens that it means are judged (section 3.1 of the paper)

    def __init__(self, shape: HeadShape, embedding: Tensor, output: Tensor) -> None:
        super().__init__(shape, embedding, output)
        self.feature_norm = nn.Identity()
        self.layers = nn.ModuleList([FirstLayer(shape)])
        self.fc = nn.Linear(3 * shape.hidden, shape.hidden, bias=False)

    def fused(self, features: Tensor) -> Tensor:
        return self.fc(features[..., : -self.shape.hidden])

    def entered(self, index: int, x: Tensor, features: Tensor) -> Tensor:
        return torch.cat([x, features], -1)

    def predicted(self, x: Tensor) -> Tensor:
        return x

    def logits(self, features: Tensor) -> Tensor:
        return self.taught(self.norm(features))


def layers_read(folder: Path) -> Layers:
    """The usual layers of the target in `folder`. Raises DerbyError if it has fewer than three."""
    count = json.loads((folder / CONFIG).read_text())["num_hidden_layers"]
    if count < 3:
        raise DerbyError(
            f"An EAGLE-3 draft reads three layers and the target has {count}: choose a larger one."
        )
    return usual_layers(count)


def new_eagle3(folder: Path, tokens: NDArray[np.int64], source: int) -> Eagle3Head:
    """A head that starts from layer `source` of the target in `folder`."""
    config = json.loads((folder / CONFIG).read_text())
    table, output = embeddings(folder)
    shape = replace(shape_of(config, 1, ()), window=EVERY)
    head = Eagle3Head(shape, table, output[torch.from_numpy(tokens)])
    first = head.layers[0]
    with torch.no_grad():
        for ours, theirs in LAYER_TENSORS.items():
            found = tensor(folder, f"model.layers.{source}.{theirs}.weight")
            weight = first.get_submodule(ours).get_parameter("weight")
            weight.copy_(found if found.shape == weight.shape else torch.cat([found, found], 1))
        head.norm.weight.copy_(tensor(folder, "model.norm.weight"))
    return head


def write_eagle3(
    path: Path, head: Eagle3Head, tokens: NDArray[np.int64], target: Path, verifier: str
) -> None:
    """Write the draft's weights to `path`, bf16, config.json beside them, and in the folder AUTHORS
    the same in the authors' format. `target` is the model's folder, and `verifier` what vLLM is to
    serve beside the draft.
    """
    config = json.loads((target / CONFIG).read_text())
    weights = {_published(name): weight for name, weight in head.state_dict().items()}
    # The target's own: `speculators` 0.9.0 leaves embeddings that are not in the file undefined.
    weights |= {"embed_tokens.weight": head.embedding, "lm_head.weight": head.output}
    weights = {name: weight.bfloat16().contiguous().cpu() for name, weight in weights.items()}
    ids = torch.from_numpy(tokens)
    weights["d2t"] = ids - torch.arange(len(ids))
    weights["t2d"] = torch.isin(torch.arange(config["vocab_size"]), ids)
    stated = _config(head, len(ids), config, layers_read(target), verifier)
    renamed = {name.replace("layers.0.", "midlayer."): each for name, each in weights.items()}
    authors = {
        **stated["transformer_layer_config"],
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(ids),
        "dtype": "bfloat16",
        "rope_theta": head.shape.theta,
    }
    _write(path.parent / AUTHORS, authors, renamed)
    _write(path.parent, stated, weights)


def _write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    """The weights last, and whole: they say that the folder can be used."""
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{WEIGHTS}.partial"
    save_file(weights, partial, {"format": "pt"})
    (folder / CONFIG).write_text(f"{json.dumps(config, indent=2)}\n", encoding="utf-8")
    partial.replace(folder / WEIGHTS)


def read_eagle3(path: Path) -> tuple[dict[str, Tensor], NDArray[np.int64]]:
    """An Eagle3Head's weights, and the target's ids of its logits. Raises DerbyError."""
    try:
        weights = load_file(path)
        offsets = weights.pop("d2t")
    except (OSError, SafetensorError, KeyError) as error:
        raise DerbyError(
            f"{path.name} is not a trained draft ({error}): restore it, or train one again."
        ) from error
    names = (f"layers.0.{name}.weight" for name in LAYER_TENSORS)
    ours = {_published(name): name for name in names}
    unread = ("embed_tokens.weight", "lm_head.weight", "t2d")  # the target's own; the ids again
    found = {ours.get(n, n): each.float() for n, each in weights.items() if n not in unread}
    return found, (offsets + torch.arange(len(offsets))).numpy()


def _published(name: str) -> str:
    """What a weight of the head is called in the format."""
    place, _, kind = name.rpartition(".")
    layer, _, part = place.rpartition(".")
    return f"{layer}.{LAYER_TENSORS[part]}.{kind}" if part in LAYER_TENSORS else name


def _config(
    head: Eagle3Head, vocabulary: int, target: dict[str, Any], reads: Layers, verifier: str
) -> dict[str, Any]:
    shape = head.shape
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": vocabulary,
        "dtype": "bfloat16",
        "eagle_aux_hidden_state_layer_ids": list(reads),
        "norm_before_residual": False,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {
                "architectures": target.get("architectures") or [],
                "name_or_path": verifier,
            },
        },
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            "model_type": "llama",
            "attention_bias": False,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "hidden_size": shape.hidden,
            "intermediate_size": shape.intermediate,
            "max_position_embeddings": target["max_position_embeddings"],
            "mlp_bias": False,
            "num_attention_heads": shape.heads,
            "num_hidden_layers": 1,
            "num_key_value_heads": shape.kv_heads,
            "rms_norm_eps": shape.eps,
            "rope_parameters": {"rope_theta": shape.theta, "rope_type": "default"},
            "tie_word_embeddings": False,
            "vocab_size": target["vocab_size"],
        },
    }
