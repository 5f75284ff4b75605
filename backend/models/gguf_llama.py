"""The weights of a Llama's GGUF file as a Hugging Face folder has them.

transformers reads such files too, but it reads the header three times and works on torch tensors:
20 s for the built-in model, where this takes 3.
"""

import re
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from backend.models.gguf_header import GgufHeader

#: What Hugging Face calls a tensor, by its name in GGUF without number and suffix.
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def llama_tensors(path: Path, header: GgufHeader) -> dict[str, NDArray[np.float32]]:
    """The weights of a little-endian file as Hugging Face names and lays them out, dequantised."""
    heads = {
        "attn_q": header.fields["llama.attention.head_count"],
        "attn_k": header.fields["llama.attention.head_count_kv"],
    }
    data = np.memmap(path, np.uint8, "r")
    found: dict[str, NDArray[np.float32]] = {}
    for name, tensor in header.tensors.items():
        layer, kind = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", name).groups()  # type: ignore[union-attr]
        stored = data[tensor.start : tensor.end].reshape(*tensor.shape[:-1], -1)
        weight = dequantize(stored, GGMLQuantizationType(tensor.kind))
        prefix = f"model.layers.{layer}." if layer else ""
        found[f"{prefix}{NAMES[kind]}.weight"] = (
            _halves(weight, heads[kind]) if kind in heads else np.asarray(weight)
        )
    return found


def _halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """The rows [O] of a query or key matrix as Hugging Face orders them: of each head, those that a
    position turns against one another lie half a head apart; in GGUF they are neighbours.
    """
    pairs = weight.reshape(heads, len(weight) // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
