"""A Llama's GGUF file as a Hugging Face folder has it: configuration and weights, read once.

transformers reads such files too, but it reads the header three times and works on torch tensors:
20 s for the built-in model, where this takes 3.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from numpy.typing import NDArray

from backend.errors import DerbyError

Fields = dict[str, Any]

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


class _Reader(GGUFReader):
    """Gets single values from the file's buffer: slices of a numpy.memmap, which the original makes
    of every one, take four fifths of the time.
    """

    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        return np.frombuffer(self.data, dtype, int(count), int(offset))


class LlamaGguf:
    """`fields` are the file's metadata by name. Little-endian files only."""

    def __init__(self, path: Path) -> None:
        """Raises DerbyError if the model is no Llama."""
        self._reader = _Reader(path)
        self.fields: Fields = {n: field.contents() for n, field in self._reader.fields.items()}
        architecture = self.fields["general.architecture"]
        if architecture != "llama":
            raise DerbyError(f"{path.name} holds a model of kind {architecture!r}, not a Llama.")

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        """The weights as Hugging Face names and lays them out, dequantised."""
        heads = {
            "attn_q": self.fields["llama.attention.head_count"],
            "attn_k": self.fields["llama.attention.head_count_kv"],
        }
        found: dict[str, NDArray[np.float32]] = {}
        for tensor in self._reader.tensors:
            layer, kind = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name).groups()  # type: ignore[union-attr]
            weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
            prefix = f"model.layers.{layer}." if layer else ""
            found[f"{prefix}{NAMES[kind]}.weight"] = (
                _halves(weight, heads[kind]) if kind in heads else weight
            )
        return found

    def config(self) -> Fields:
        """config.json of the model, its embeddings tied if there is no output projection."""
        fields = {name.removeprefix("llama."): value for name, value in self.fields.items()}
        tied = all(tensor.name != "output.weight" for tensor in self._reader.tensors)
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
            "tie_word_embeddings": tied,
            "transformers_version": "5.5.4",
            "unk_token_id": fields["tokenizer.ggml.unknown_token_id"],
            "use_cache": True,
            "vocab_size": fields["vocab_size"],
        }


def _halves(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """The rows [O] of a query or key matrix as Hugging Face orders them: of each head, those that a
    position turns against one another lie half a head apart; in GGUF they are neighbours.
    """
    pairs = weight.reshape(heads, len(weight) // heads // 2, 2, -1)
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(weight.shape)
