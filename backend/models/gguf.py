"""The built-in model's GGUF file, read once: a Llama's weights, a byte-level BPE tokenizer."""

import re
from pathlib import Path
from typing import Any

SUFFIX = ".gguf"

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

#: Special tokens, by what transformers calls them.
SPECIAL = {
    "bos_token": "tokenizer.ggml.bos_token_id",
    "eos_token": "tokenizer.ggml.eos_token_id",
    "unk_token": "tokenizer.ggml.unknown_token_id",
    "pad_token": "tokenizer.ggml.padding_token_id",
}

#: GGUF's token_type of a control token.
CONTROL = 3


def write_folder(path: Path, folder: Path) -> None:
    """Write the model in a GGUF file of the built-in's kind (Llama, SmolLM's tokenizer) into
    `folder`: float32 safetensors and tokenizer, without configs.
    """
    from gguf import GGUFReader, dequantize
    from safetensors.numpy import save_file

    reader = GGUFReader(path)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    heads = {
        "attn_q": fields["llama.attention.head_count"],
        "attn_k": fields["llama.attention.head_count_kv"],
    }
    tensors = {}
    for tensor in reader.tensors:
        layer, kind = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name).groups()  # type: ignore[union-attr]
        weight = dequantize(tensor.data, tensor.tensor_type)
        if kind in heads:
            # Rows that a position turns against one another are neighbours in GGUF, and half a
            # head apart in Hugging Face's layout.
            pairs = weight.reshape(heads[kind], len(weight) // heads[kind] // 2, 2, -1)
            weight = pairs.swapaxes(1, 2).reshape(weight.shape)
        prefix = f"model.layers.{layer}." if layer else ""
        tensors[f"{prefix}{NAMES[kind]}.weight"] = weight.copy()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    _tokenizer(fields).save_pretrained(folder)


def _tokenizer(fields: dict[str, Any]) -> Any:
    """The tokenizer whose ids are the indices of `tokenizer.ggml.tokens`: digits one by one, then
    GPT-2's words, whose bytes are merged. What transformers itself makes of the file has tokens
    that the model lacks, and loses every space once saved and reloaded.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    bpe = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    words: Any = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits: Any = pre_tokenizers.Digits(individual_digits=True)
    bpe.pre_tokenizer = pre_tokenizers.Sequence([digits, words])  # type: ignore[assignment]
    bpe.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    kinds = zip(tokens, fields["tokenizer.ggml.token_type"], strict=True)
    control = [token for token, kind in kinds if kind == CONTROL]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        model_max_length=fields["llama.context_length"],
        clean_up_tokenization_spaces=False,
        **{role: tokens[fields[key]] for role, key in SPECIAL.items() if key in fields},
    )
    fast.chat_template = fields["tokenizer.chat_template"]
    return fast
