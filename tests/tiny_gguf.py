"""A tiny random Llama as a GGUF file, in any format that the gguf package can quantise to."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import families
import gguf
import numpy as np
from gguf import GGMLQuantizationType, quants

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
HEADS = {"attn_q": 4, "attn_k": 2}

TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.eos_token_id": families.END,
}


def tokens() -> list[str]:
    """The bytes, the end of the text, and what the merges make."""
    vocabulary = families.byte_tokenizer().get_vocab()
    return sorted(vocabulary, key=vocabulary.__getitem__)


def gguf_name(name: str) -> str:
    """What GGUF calls the tensor of this name."""
    name = name.removesuffix(".weight")
    if not name.startswith("model.layers."):
        return f"{NAMES[name]}.weight"
    layer, _, kind = name.removeprefix("model.layers.").partition(".")
    return f"blk.{layer}.{NAMES[kind]}.weight"


def paired(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp's converter orders them: rotated pairs are neighbours."""
    halves = weight.reshape(heads, 2, len(weight) // heads // 2, -1)
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def random_weights() -> dict[str, np.ndarray]:
    """Those of a tiny Llama of two layers, without torch."""
    shapes = {"self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64)}
    shapes |= {"self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64)}
    shapes |= {"mlp.gate_proj": (96, 64), "mlp.up_proj": (96, 64), "mlp.down_proj": (64, 96)}
    layers = {f"model.layers.{i}.{name}": shape for i in (0, 1) for name, shape in shapes.items()}
    ends = dict.fromkeys(("model.embed_tokens", "lm_head"), (families.VOCABULARY, 64))
    norms = ["model.norm"]
    for i in (0, 1):
        norms += [f"model.layers.{i}.{n}_layernorm" for n in ("input", "post_attention")]
    draw = np.random.default_rng(3)
    made = {
        name: draw.normal(0, 0.15, shape).astype(np.float32)
        for name, shape in (layers | ends).items()
    }
    made |= {name: np.ones(64, np.float32) for name in norms}
    return {f"{name}.weight": weight for name, weight in made.items()}


def write_weights(
    path: Path,
    kind: str,
    weights: Mapping[str, np.ndarray],
    vocabulary: tuple[list[str], list[int]] | None = None,
    **changes: Any,
) -> None:
    """A file with these weights, by Hugging Face's names, its matrices in this format.
    `vocabulary`: other tokens, and their types.
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(families.VOCABULARY)
    writer.add_block_count(2)
    writer.add_head_count_kv(2)
    writer.add_rope_dimension_count(16)
    written, types = (tokens(), [1] * families.END + [3]) if vocabulary is None else vocabulary
    writer.add_token_list(written)
    writer.add_token_types(types)
    for name, value in {**TOKENIZER, **changes}.items():
        add = {str: writer.add_string, int: writer.add_uint32, list: writer.add_array}
        add[type(value)](name, value)
    format_ = GGMLQuantizationType[kind]
    for name, weight in weights.items():
        short = gguf_name(name)
        if weight.ndim == 1:
            writer.add_tensor(short, weight)
            continue
        heads = HEADS.get(short.split(".")[-2], 0)
        ordered = paired(weight, heads) if heads else weight
        writer.add_tensor(short, quants.quantize(ordered, format_), raw_dtype=format_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
