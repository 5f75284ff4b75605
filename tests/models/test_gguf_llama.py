"""A Llama's GGUF file becomes the model that transformers reads from it."""

from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize

from backend.errors import DerbyError
from backend.models.gguf_llama import LlamaGguf

LAYER = {
    "attn_norm": (64,),
    "attn_q": (64, 64),
    "attn_k": (32, 64),
    "attn_v": (32, 64),
    "attn_output": (64, 64),
    "ffn_norm": (64,),
    "ffn_gate": (96, 64),
    "ffn_up": (96, 64),
    "ffn_down": (64, 96),
}
WHOLE = {"token_embd": (40, 64), "output_norm": (64,)}
KINDS = (GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q8_0, GGMLQuantizationType.F16)


def write_llama(path: Path, *, tied: bool, architecture: str = "llama") -> None:
    """A random one: 2 layers, 4 heads of 16, 2 key-value heads; matrices of three kinds."""
    writer, random = GGUFWriter(path, architecture), np.random.default_rng(0)
    writer.add_name("Tiny")
    for add, value in (
        (writer.add_block_count, 2),
        (writer.add_context_length, 128),
        (writer.add_embedding_length, 64),
        (writer.add_feed_forward_length, 96),
        (writer.add_head_count, 4),
        (writer.add_head_count_kv, 2),
        (writer.add_rope_dimension_count, 16),
        (writer.add_vocab_size, 40),
        (writer.add_bos_token_id, 1),
        (writer.add_eos_token_id, 2),
        (writer.add_pad_token_id, 2),
        (writer.add_unk_token_id, 0),
    ):
        add(value)
    writer.add_rope_freq_base(5e4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(40)])
    shapes = WHOLE | ({} if tied else {"output": (40, 64)})
    shapes |= {f"blk.{i}.{name}": shape for i in range(2) for name, shape in LAYER.items()}
    for i, (name, shape) in enumerate(shapes.items()):
        weight = random.normal(size=shape).astype(np.float32)
        if len(shape) == 1:
            writer.add_tensor(f"{name}.weight", weight)
        else:
            kind = KINDS[i % 3]
            writer.add_tensor(f"{name}.weight", quantize(weight, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.model
@pytest.mark.parametrize("tied", [True, False])
def test_weights_and_sizes_are_those_that_transformers_reads(tmp_path: Path, tied: bool) -> None:
    """The order of a query's and a key's rows is the trap: a wrong one still writes text."""
    import torch
    from transformers import LlamaForCausalLM

    write_llama(tmp_path / "tiny.gguf", tied=tied)
    ours = LlamaGguf(tmp_path / "tiny.gguf")
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, gguf_file="tiny.gguf", dtype=torch.float32)
    expected = {name: value.numpy() for name, value in theirs.state_dict().items()}
    tensors = ours.tensors()
    assert tensors.keys() == expected.keys() - ({"lm_head.weight"} if tied else set())
    for name, value in tensors.items():
        np.testing.assert_array_equal(value, expected[name])
    known = theirs.config.to_dict()
    differ = {name for name, value in ours.config().items() if known.get(name) != value}
    assert differ <= {"architectures", "dtype"}  # which transformers fills in when it saves


def test_another_kind_of_model_is_refused(tmp_path: Path) -> None:
    write_llama(tmp_path / "tiny.gguf", tied=True, architecture="qwen2")
    with pytest.raises(DerbyError, match="holds a model of kind 'qwen2'"):
        LlamaGguf(tmp_path / "tiny.gguf")
