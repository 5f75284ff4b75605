"""EAGLE-3 drafts with random weights, as folders of their authors' form and of `speculators`'; and
what a draft computes by definition.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from chat_model import VOCABULARY, make
from safetensors.torch import save_file
from torch.nn import functional

from backend.engines.eagle3.network import Eagle3
from backend.types import HiddenStates, Logits

#: Tokens that the drafts know, and layers of a chat model that they read.
KNOWN, LAYERS = 200, (1, 2)

#: Of a chat model.
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def random_draft(
    folder: Path, sizes: Mapping[str, Any], layers: tuple[int, ...], *, speculators: bool = False
) -> Path:
    """Write a draft for targets of these sizes, of which it reads these layers: the same weights
    every time, on grids of 8 bits.
    """
    from backend.engines.eagle3.openvino import int8_rows

    torch.manual_seed(1)

    def on_grid(*size: int) -> torch.Tensor:
        codes, scales = int8_rows((0.2 * torch.randn(size)).numpy())
        return torch.from_numpy(codes * scales)

    vocabulary, wide, inner = (
        sizes[name] for name in ("vocab_size", "hidden_size", "intermediate_size")
    )
    narrow = wide * sizes["num_key_value_heads"] // sizes["num_attention_heads"]
    rows = {"self_attn.q": wide, "self_attn.k": narrow, "self_attn.v": narrow}
    shapes = {name: (count, 2 * wide) for name, count in rows.items()}
    shapes |= {"self_attn.o": (wide, wide), "mlp.down": (wide, inner)}
    shapes |= {"mlp.gate": (inner, wide), "mlp.up": (inner, wide)}
    layer = {f"{name}_proj": on_grid(*shape) for name, shape in shapes.items()}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    layer |= {name: 1 + 0.1 * torch.randn(wide) for name in norms}
    prefix = "layers.0" if speculators else "midlayer"
    tensors = {
        "fc.weight": on_grid(wide, wide * len(layers)),
        "norm.weight": 1 + 0.1 * torch.randn(wide),
        "lm_head.weight": on_grid(KNOWN, wide),
        "d2t": torch.full((KNOWN,), vocabulary - KNOWN),
        "t2d": torch.arange(vocabulary) >= vocabulary - KNOWN,
        **{f"{prefix}.{name}.weight": tensor for name, tensor in layer.items()},
    }
    own = {**sizes, "model_type": "llama", "num_hidden_layers": 1, "rms_norm_eps": 1e-6}
    reads = {"eagle_aux_hidden_state_layer_ids": layers}
    config = own | {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": reads}
    if speculators:
        config = {"speculators_model_type": "eagle3", "transformer_layer_config": own} | reads
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def make_drafts(root: Path) -> tuple[Path, Path, Path]:
    """The folders of a chat model, and of its draft in either form."""
    return (
        make(root / "target"),
        random_draft(root / "authors", SIZES, LAYERS),
        random_draft(root / "speculators", SIZES, LAYERS, speculators=True),
    )


class Whole:
    """The network as it is defined: over all rows at once, every time. A row is a token and what
    was fused at the token before it.
    """

    def __init__(self, network: Eagle3) -> None:
        self.network, self.window = network, network.shape.window
        self.rows: list[tuple[int, int, torch.Tensor]] = []
        self.state = torch.zeros(0)

    @torch.inference_mode()
    def read(self, position: int, tokens: list[int], states: HiddenStates) -> Logits:
        places = range(position, position + len(tokens))
        fused = self.network.fc(torch.from_numpy(states))
        return self._with(zip(places, tokens, fused, strict=True))

    @torch.inference_mode()
    def guess(self, position: int, token: int) -> Logits:
        return self._with([(position, token, self.state)])

    def _with(self, rows: Any) -> Logits:
        self.rows += rows
        places, tokens, hidden = zip(*self.rows, strict=True)
        positions, network = torch.tensor(places), self.network
        x, read = network.entered(torch.stack(hidden), network.embed(torch.tensor(tokens)))
        layer, shape = network.midlayer, network.shape
        q, k, v = (each.transpose(0, 1) for each in layer.project(read, positions))
        distance = positions[:, None] - positions
        k, v = (each.repeat_interleave(shape.heads // shape.kv_heads, 0) for each in (k, v))
        seen = (distance >= 0) & (distance < self.window)
        attended = functional.scaled_dot_product_attention(q, k, v, seen).transpose(0, 1)
        x = layer.finish(x, attended)
        self.state = x[-1]
        return network.logits(x[-1:]).numpy()

    def rewind(self, length: int) -> None:
        self.rows = [row for row in self.rows if row[0] < length]
