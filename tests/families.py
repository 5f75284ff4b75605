"""Tiny random models of many architectures, each a folder as the Hub has it: for the matrix."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from backend.engines.torch.captured import Capture
    from backend.engines.torch.engine import TorchEngine

#: Bytes 0 to 255 in the tokenizer's own order, then the end of the text.
VOCABULARY = 257
END = 256

#: Sizes under the names that most configurations use.
USUAL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": END,
    "eos_token_id": END,
    "pad_token_id": END,
}

#: Tokens of the longest text of a `tiny_engine`.
LONGEST = 1100

#: The original context of longrope models, beyond which they read nothing.
ORIGINAL_CONTEXT = 64


def _usual(model_type: str, **changes: Any) -> dict[str, Any]:
    return {"model_type": model_type, **USUAL, **changes}


_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "shared_expert_intermediate_size": 48,
}
_MOE = {"num_local_experts": 4, "num_experts_per_tok": 2}
_HEAD = {"head_dim": 16}
_WINDOW = {"sliding_window": 6}
_MIXED = ["sliding_attention", "full_attention"]
#: The last two of six layers read what layers 2 and 3 keep.
_SHARED = {
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "layer_types": 3 * _MIXED,
    "vocab_size_per_layer_input": VOCABULARY,
    "hidden_size_per_layer_input": 8,
    **_WINDOW,
    **_HEAD,
}


def _seeing(kind: str, text: dict[str, Any], **vision: Any) -> dict[str, Any]:
    """A model that reads images too, which nobody here shows it."""
    seen = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, **vision}
    return {"model_type": kind, "text_config": text, "vision_config": seen}


_PICTURES = {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}

FAMILIES: Mapping[str, dict[str, Any]] = {
    "llama": _usual("llama"),
    "llama tied": _usual("llama", tie_word_embeddings=True),
    "llama dynamic": _usual(
        "llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    ),
    "qwen2": _usual("qwen2"),
    "qwen3": _usual("qwen3", **_HEAD),
    "mistral": _usual("mistral", sliding_window=None, **_HEAD),
    "mistral window": _usual("mistral", **_WINDOW, **_HEAD),
    "qwen2 windows": _usual("qwen2", use_sliding_window=True, max_window_layers=1, **_WINDOW),
    "phi": _usual("phi", num_key_value_heads=4),
    "phi3": _usual("phi3"),
    "phi3 longrope": _usual(
        "phi3",
        original_max_position_embeddings=ORIGINAL_CONTEXT,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 10000.0,
            "short_factor": [1.0 + 0.05 * i for i in range(8)],
            "long_factor": [2.0 + 0.7 * i for i in range(8)],
            "original_max_position_embeddings": ORIGINAL_CONTEXT,
        },
    ),
    "gpt2": {
        "model_type": "gpt2",
        "vocab_size": VOCABULARY,
        "n_embd": 64,
        "n_inner": 96,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 256,
        "bos_token_id": END,
        "eos_token_id": END,
    },
    "gpt_neox": _usual("gpt_neox"),
    "opt": _usual("opt", ffn_dim=96, word_embed_proj_dim=64),
    "falcon": _usual("falcon", new_decoder_architecture=False, multi_query=True, alibi=False),
    "falcon alibi": _usual("falcon", new_decoder_architecture=False, multi_query=True, alibi=True),
    "olmo2": _usual("olmo2"),
    "granite": _usual("granite"),
    "granitemoe": _usual("granitemoe", **_MOE),
    "smollm3": _usual("smollm3", no_rope_layers=[1, 0]),
    "qwen2_moe": _usual("qwen2_moe", **_EXPERTS),
    "phimoe": _usual("phimoe", **_MOE),
    "glm4": _usual("glm4", **_HEAD),
    "gpt_neo": _usual(
        "gpt_neo",
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=24,
    ),
    "bloom": {
        "model_type": "bloom",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "n_layer": 2,
        "n_head": 4,
        "bos_token_id": END,
        "eos_token_id": END,
    },
    "gemma": _usual("gemma", **_HEAD),
    "gemma2": _usual("gemma2", query_pre_attn_scalar=16, layer_types=_MIXED, **_WINDOW, **_HEAD),
    "gemma3": _usual(
        "gemma3_text", query_pre_attn_scalar=16, layer_types=_MIXED, **_WINDOW, **_HEAD
    ),
    "gemma3n": _usual(
        "gemma3n_text",
        laurel_rank=8,
        altup_num_inputs=2,
        activation_sparsity_pattern=[0.5, 0.0, 0.0, 0.0, 0.0, 0.0],
        **_SHARED,
    ),
    "gemma4": _usual("gemma4_text", global_head_dim=32, use_double_wide_mlp=True, **_SHARED),
    "llama4": _usual(
        "llama4_text",
        intermediate_size_mlp=96,
        attention_chunk_size=32,
        no_rope_layers=[1, 0],
        floor_scale=8,
        **_MOE,
        **_HEAD,
    ),
    "mistral3": _seeing("mistral3", _usual("mistral", **_HEAD), head_dim=16, **_PICTURES),
    "gemma3 images": _seeing(
        "gemma3",
        _usual("gemma3_text", query_pre_attn_scalar=16, layer_types=_MIXED, **_WINDOW, **_HEAD),
        model_type="siglip_vision_model",
        **_PICTURES,
    ),
    "olmo3": _usual("olmo3", layer_types=_MIXED, **_WINDOW),
    # Its queries grow with every 16 positions.
    "ministral3": _usual(
        "ministral3",
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "llama_4_scaling_beta": 0.5,
        },
        sliding_window=None,
        **_HEAD,
    ),
}

_LINEAR = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
_MROPE = {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}}
_ALTERNATING = ["linear_attention", "full_attention"] * 2
_MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_expand": 2,
    "mamba_chunk_size": 16,
}


def _four(model_type: str, **changes: Any) -> dict[str, Any]:
    """Four layers, so that both kinds follow both."""
    return _usual(model_type, num_hidden_layers=4, **changes)


#: transformers' Nemotron-H calls its masks by an argument's old name.
OLD_NAMES = pytest.mark.filterwarnings("ignore:.input_embeds. is deprecated:FutureWarning")

#: Those with recurrent layers, which keep a state of the text.
RECURRENT: Mapping[str, dict[str, Any]] = {
    "lfm2": _four("lfm2", layer_types=["conv", "full_attention"] * 2, block_ff_dim=96),
    "lfm2_moe": _four(
        "lfm2_moe",
        layer_types=["conv", "full_attention"] * 2,
        num_experts=4,
        num_experts_per_tok=2,
        num_dense_layers=1,
        moe_intermediate_size=48,
    ),
    "qwen3_next": _four("qwen3_next", layer_types=_ALTERNATING, **_LINEAR, **_EXPERTS, **_HEAD),
    "qwen3_5": _four("qwen3_5_text", layer_types=_ALTERNATING, **_LINEAR, **_MROPE, **_HEAD),
    "qwen3_5_moe": _four(
        "qwen3_5_moe_text", layer_types=_ALTERNATING, **_LINEAR, **_EXPERTS, **_MROPE, **_HEAD
    ),
    "mamba2": {
        "model_type": "mamba2",
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "num_hidden_layers": 3,
        "num_heads": 8,
        "head_dim": 16,
        "state_size": 16,
        "n_groups": 2,
        "chunk_size": 16,
        "bos_token_id": END,
        "eos_token_id": END,
        "pad_token_id": END,
    },
    "falcon_h1": _four(
        "falcon_h1",
        mamba_n_groups=2,
        mamba_d_ssm=128,
        ssm_multipliers=[0.5, 1.5, 0.8, 1.2, 0.9],
        **_HEAD,
        **_MAMBA,
    ),
    "granite hybrid": _four(
        "granitemoehybrid",
        layer_types=["mamba", "attention"] * 2,
        shared_intermediate_size=48,
        mamba_n_groups=1,
        **_MOE,
        **_MAMBA,
    ),
    "nemotron_h": _usual(
        "nemotron_h",
        layers_block_type=["mamba", "attention", "moe", "mamba"],
        mamba_num_heads=8,
        mamba_head_dim=16,
        ssm_state_size=16,
        n_groups=2,
        n_routed_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=48,
        moe_shared_expert_intermediate_size=48,
        **_HEAD,
    ),
}

#: Those whose attention goes by a row's place in the cache: they check chains of guesses alone.
CHAINS = ("bloom", "falcon alibi", "gpt_neo", "llama4")


def make(name: str, folder: Path, *, spread: float = 0.15, **changes: Any) -> Path:
    """Write the model called `name` into `folder`: safetensors, configs and a byte tokenizer.

    The same weights every time; `spread` is their standard deviation, wide enough that texts vary.
    """
    stated = {**{**FAMILIES, **RECURRENT}[name], **changes}
    random_model(stated.pop("model_type"), spread, **stated).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


def random_model(model_type: str, spread: float = 0.15, **changes: Any) -> Any:
    """A model of transformers, float32; attention that is sharp shows a wrong mask."""
    import torch
    from transformers import AutoConfig

    torch.manual_seed(5)
    config = AutoConfig.for_model(model_type, **changes)
    model = auto_class(config).from_config(config, dtype=torch.float32).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=spread)
    return model


@cache
def tiny_model(name: str) -> Any:
    """The model called `name`, for texts of LONGEST tokens."""
    stated = dict(FAMILIES[name])
    length = "n_positions" if "n_positions" in stated else "max_position_embeddings"
    return random_model(stated.pop("model_type"), **{**stated, length: LONGEST})


def tiny_engine(name: str, capture: "Capture | None" = None) -> "TorchEngine":
    """That model on torch over caches that grow, or with `capture` in passes of fixed widths."""
    from backend.engines.torch.engine import TorchEngine
    from backend.tokenizer import ByteTokenizer
    from backend.types import ModelSpec

    spec, longest = ModelSpec(engine="torch"), ORIGINAL_CONTEXT if "longrope" in name else LONGEST
    return TorchEngine(spec, tiny_model(name), ByteTokenizer(), longest, capture=capture)


def auto_class(config: Any) -> Any:
    """The transformers class that makes and loads a model of this configuration."""
    from transformers import (
        MODEL_FOR_CAUSAL_LM_MAPPING,
        AutoModelForCausalLM,
        AutoModelForImageTextToText,
    )

    causal = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForCausalLM if causal else AutoModelForImageTextToText


def byte_tokenizer() -> Any:
    """A fast tokenizer of one token a byte, and one that ends the text."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>")  # noqa: S106


def random_draft(folder: Path, layers: tuple[int, int, int]) -> Path:
    """Write an EAGLE-3 draft with random weights, for targets of USUAL's sizes, of whose tokens it
    knows every other one.
    """
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(7)
    width, inner, narrow = USUAL["hidden_size"], USUAL["intermediate_size"], 32
    known = torch.arange(0, VOCABULARY, 2)
    shapes = {
        "fc": (width, 3 * width),
        "midlayer.self_attn.q_proj": (width, 2 * width),
        "midlayer.self_attn.k_proj": (narrow, 2 * width),
        "midlayer.self_attn.v_proj": (narrow, 2 * width),
        "midlayer.self_attn.o_proj": (width, width),
        "midlayer.mlp.gate_proj": (inner, width),
        "midlayer.mlp.up_proj": (inner, width),
        "midlayer.mlp.down_proj": (width, inner),
        "lm_head": (len(known), width),
    }
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    weights = {f"{name}.weight": 0.2 * torch.randn(shape) for name, shape in shapes.items()}
    weights |= {f"midlayer.{name}.weight": torch.ones(width) for name in norms}
    weights |= {"norm.weight": torch.ones(width), "d2t": known - torch.arange(len(known))}
    weights["t2d"] = torch.arange(VOCABULARY) % 2 == 0
    folder.mkdir()
    save_file(weights, folder / "model.safetensors")
    config = _usual("llama", num_hidden_layers=1, head_dim=16, rms_norm_eps=1e-6)
    config |= {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(known)}
    config |= {"eagle_aux_hidden_state_layer_ids": layers, "rope_theta": 10000.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder
