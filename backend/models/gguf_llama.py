"""A Llama's GGUF file as a Hugging Face folder has it: configuration and weights, read once.

transformers reads such files too, but it reads the header three times and works on torch tensors:
20 s for the built-in model, where this takes 3.
"""

import re
from pathlib import Path
from typing import Any

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


def llama_config(header: GgufHeader) -> dict[str, Any]:
    """config.json of the model, its embeddings tied if there is no output projection."""
    fields = {name.removeprefix("llama."): value for name, value in header.fields.items()}
    return {
        "_model_name_or_path": fields["general.name"],
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "dtype": "float32",
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        "head_dim": fields["rope.dimension_count"],
        "hidden_act": "silu",
        "hidden_size": fields["embedding_length"],
        "initializer_range": 0.02,
        "intermediate_size": fields["feed_forward_length"],
        "max_position_embeddings": fields["context_length"],
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": fields["attention.head_count"],
        "num_hidden_layers": fields["block_count"],
        "num_key_value_heads": fields["attention.head_count_kv"],
        "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
        "pretraining_tp": 1,
        "rms_norm_eps": fields["attention.layer_norm_rms_epsilon"],
        "rope_parameters": {"rope_theta": fields["rope.freq_base"], "rope_type": "default"},
        "tie_word_embeddings": "output.weight" not in header.tensors,
        "transformers_version": "5.5.4",
        "unk_token_id": fields["tokenizer.ggml.unknown_token_id"],
        "use_cache": True,
        "vocab_size": fields["vocab_size"],
    }
