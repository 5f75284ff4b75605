"""EAGLE-3 drafts with random weights, as folders of their authors' form and of `speculators`'."""

import json
from pathlib import Path
from typing import Any

import torch
from chat_model import VOCABULARY, make
from safetensors.torch import save_file

#: Tokens that the drafts know, and layers of the target that they read.
KNOWN, LAYERS = 200, (1, 2)

SIZES = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
}
READS = {"eagle_aux_hidden_state_layer_ids": LAYERS}
AUTHORS = SIZES | {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": READS}
SPECULATORS = {"speculators_model_type": "eagle3", "transformer_layer_config": SIZES} | READS


def weights(layer: str = "midlayer", reads: int = len(LAYERS)) -> dict[str, torch.Tensor]:
    """A draft's, the same ones every time, on grids of 8 bits; `layer` is its only one's name, and
    it reads so many of the target's.
    """
    from backend.engines.eagle3.openvino import int8_rows

    torch.manual_seed(1)

    def on_grid(*size: int) -> torch.Tensor:
        codes, scales = int8_rows(0.2 * torch.randn(size).numpy())
        return torch.from_numpy(codes * scales)

    sizes = {"q": (32, 64), "k": (16, 64), "v": (16, 64), "o": (32, 32)}
    own = {f"self_attn.{name}_proj": on_grid(*size) for name, size in sizes.items()}
    sizes = {"gate": (48, 32), "up": (48, 32), "down": (32, 48)}
    own |= {f"mlp.{name}_proj": on_grid(*size) for name, size in sizes.items()}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    own |= {name: 1 + 0.1 * torch.randn(32) for name in norms}
    ids = torch.arange(VOCABULARY)[-KNOWN:]
    return {
        "fc.weight": on_grid(32, 32 * reads),
        "norm.weight": 1 + 0.1 * torch.randn(32),
        "lm_head.weight": on_grid(KNOWN, 32),
        "d2t": ids - torch.arange(KNOWN),
        "t2d": torch.arange(VOCABULARY) >= VOCABULARY - KNOWN,
        **{f"{layer}.{name}.weight": tensor for name, tensor in own.items()},
    }


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Path:
    """Make a draft's folder of that configuration and those weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(dict(tensors), folder / "model.safetensors")
    return folder


def make_drafts(root: Path) -> tuple[Path, Path, Path]:
    """The folders of a target, and of its draft in either form."""
    return (
        make(root / "target"),
        write(root / "authors", AUTHORS, weights()),
        write(root / "speculators", SPECULATORS, weights("layers.0")),
    )
