"""A tiny random Gemma 3 as a GGUF file, whose tokens are bytes."""

from pathlib import Path

import families
import gguf
import numpy as np

#: llama.cpp wants some; this one makes no token of the vocabulary, so nothing is merged.
MERGES = ["! !"]
TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"

WIDTH, HEAD, HEADS, KV_HEADS, INNER, LAYERS = 64, 16, 4, 2, 96, 2

MATRICES = {
    "attn_q": (HEADS * HEAD, WIDTH),
    "attn_k": (KV_HEADS * HEAD, WIDTH),
    "attn_v": (KV_HEADS * HEAD, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
}
NORMS = {
    **dict.fromkeys(("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), WIDTH),
    **dict.fromkeys(("attn_q_norm", "attn_k_norm"), HEAD),
}


def make(path: Path) -> Path:
    """Write the file."""
    vocabulary = families.byte_tokenizer().get_vocab()
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_context_length(512)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_block_count(LAYERS)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_sliding_window(32)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_token_types([1] * families.END + [3])
    writer.add_token_merges(MERGES)
    writer.add_eos_token_id(families.END)
    writer.add_chat_template(TEMPLATE)
    draw = np.random.default_rng(3)
    shapes = {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in MATRICES.items()}
    for name, shape in (shapes | {"token_embd": (families.VOCABULARY, WIDTH)}).items():
        writer.add_tensor(f"{name}.weight", draw.normal(0, 0.15, shape).astype(np.float32))
    norms = {f"blk.{i}.{name}": size for i in range(LAYERS) for name, size in NORMS.items()}
    for name, size in (norms | {"output_norm": WIDTH}).items():
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
