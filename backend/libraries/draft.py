"""A trained draft in the form of the library that runs it, made once of an EAGLE-3 checkpoint: an
OpenVINO graph for openvino-genai, a GGUF file for llama.cpp.

All of them read a row as our own network does: a token, and the inputs of three of the target's
layers at the token before it. (openvino-genai looks behind layers 2, n/2 and n - 3 of n, whatever
the checkpoint says: these are the inputs of 3, n/2 + 1 and n - 2.)
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.engines.eagle3.checkpoint import (
    CONFIG,
    Checkpoint,
    draft_for,
    eagle3_folder,
    read_checkpoint,
    unsupported,
)
from backend.engines.engine import no_trained_draft
from backend.engines.openvino.export import CONVERTERS
from backend.libraries.library import TRAINED, require_package
from backend.models.files import IR, fingerprint_of, read_object
from backend.models.prepared import prepared, versions
from backend.types import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

#: Raise it whenever the code below writes something else.
RECIPE = "draft v1"

#: What llama.cpp's file is called, and its matrices and norms.
FILE = "draft.gguf"
TENSORS = {
    "fc": "fc",
    "norm": "output_norm",
    "lm_head": "output",
    "midlayer.input_layernorm": "blk.0.attn_norm",
    "midlayer.hidden_norm": "blk.0.attn_norm_2",
    "midlayer.post_attention_layernorm": "blk.0.ffn_norm",
    "midlayer.self_attn.q_proj": "blk.0.attn_q",
    "midlayer.self_attn.k_proj": "blk.0.attn_k",
    "midlayer.self_attn.v_proj": "blk.0.attn_v",
    "midlayer.self_attn.o_proj": "blk.0.attn_output",
    "midlayer.mlp.gate_proj": "blk.0.ffn_gate",
    "midlayer.mlp.up_proj": "blk.0.ffn_up",
    "midlayer.mlp.down_proj": "blk.0.ffn_down",
}


def checkpoint_of(draft: str, target: ModelSpec) -> Path | None:
    """The folder of the EAGLE-3 draft that a setting names; None: it names another model. Raises
    DerbyError if none was trained.
    """
    folder = draft_for(target) if draft == TRAINED else eagle3_folder(draft)
    if folder is None and draft == TRAINED:
        raise no_trained_draft(target.name)
    return folder


def genai_draft(checkpoint: Path, target: ModelSpec) -> Path:
    """The folder of a draft's graph, made if need be. Raises DerbyError for one that does not fit
    the target, or has what the library's graphs lack.
    """
    key = f"{RECIPE} of {fingerprint_of(checkpoint)} for {target.name} by {versions(*CONVERTERS)}"
    name = f"draft-openvino-genai-{fingerprint_of(checkpoint)[:16]}"
    return prepared(name, key, lambda folder: write_graph(checkpoint, target, folder))


def gguf_draft(checkpoint: Path, target: ModelSpec, gguf: Path) -> Path:
    """The draft's GGUF file, made if need be, with the tokenizer of the target's. Raises
    DerbyError.
    """
    require_package("gguf")
    key = f"{RECIPE} of {fingerprint_of(checkpoint)} for {gguf} by {versions('gguf')}"
    name = f"draft-llamacpp-{fingerprint_of(checkpoint)[:16]}"
    return prepared(name, key, lambda to: write_gguf(checkpoint, target, gguf, to / FILE)) / FILE


def layer_config(checkpoint: Path) -> dict[str, Any]:
    """Its layer's configuration, as Llama's: authors' own form is that, speculators' has it."""
    config = read_object(checkpoint / CONFIG, checkpoint.name)
    return config.get("transformer_layer_config") or config


def read_draft(checkpoint: Path, target: ModelSpec) -> tuple[Checkpoint, dict[str, "Tensor"]]:
    """A draft, and its tensors by their names, with the map of its vocabulary: each draftable
    token's distance to its id, and which tokens are. Raises DerbyError for one of another size than
    its target.
    """
    import torch

    draft = read_checkpoint(checkpoint, target, lambda _: None)
    network, shape = draft.network, draft.network.shape
    if shape.hidden * len(draft.layers) != shape.states:
        raise unsupported(checkpoint, "another size than its target")
    size, ids = shape.vocabulary, draft.vocabulary
    drafted = torch.arange(size) if ids is None else torch.from_numpy(ids)
    drafts = torch.zeros(len(network.embedding), dtype=torch.bool)
    drafts[drafted] = True
    return draft, {
        **network.state_dict(),
        "d2t": drafted - torch.arange(size),
        "t2d": drafts,
    }


def write_graph(checkpoint: Path, target: ModelSpec, folder: Path) -> None:
    """Write a draft as optimum-intel exports it. openvino-genai puts the target's embedding in
    place of the graph's, which is left empty.
    """
    import torch
    from optimum.exporters.openvino.convert import export
    from optimum.exporters.openvino.model_configs import LlamaOpenVINOConfig
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM
    from optimum.intel import OVConfig
    from transformers import LlamaConfig

    draft, weights = read_draft(checkpoint, target)
    if draft.network.shape.norm_before_residual:
        raise unsupported(checkpoint, "a residual behind the norm")
    config = LlamaConfig(**layer_config(checkpoint))
    config.architectures, config.draft_vocab_size = ["LlamaForCausalLMEagle3"], len(weights["d2t"])
    config.vocab_size = len(weights["t2d"])
    model: Any = LlamaEagle3ForCausalLM(config).float().eval()
    model.model.embed_tokens.weight.data.zero_()
    model.model.load_state_dict(weights, strict=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about code that is not ours
        export(
            model,
            LlamaOpenVINOConfig(config, "text-generation", use_past=True, use_past_in_inputs=True),
            folder / IR[0],
            ov_config=OVConfig(dtype="fp32"),
            library_name="transformers",
        )
    config.to_json_file(folder / CONFIG)


def write_gguf(checkpoint: Path, target: ModelSpec, gguf_file: Path, file: Path) -> None:
    """Write a draft for llama.cpp, with the tokenizer of the target's file."""
    import gguf
    import numpy as np

    draft, weights = read_draft(checkpoint, target)
    shape = draft.network.shape
    if len(draft.layers) != 3:
        raise unsupported(checkpoint, f"{len(draft.layers)} layers of the target to read")
    writer = gguf.GGUFWriter(file, "eagle3")
    writer.add_block_count(1)
    writer.add_context_length(1 << 17)
    writer.add_embedding_length(shape.hidden)
    writer.add_feed_forward_length(shape.intermediate)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.head_dim)
    writer.add_value_length(shape.head_dim)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.theta)
    writer.add_layer_norm_rms_eps(shape.eps)
    writer.add_vocab_size(len(weights["t2d"]))
    writer.add_array("eagle3.target_layers", list(draft.layers))
    writer.add_uint32("eagle3.target_hidden_size", shape.states // len(draft.layers))
    writer.add_bool("eagle3.norm_before_residual", shape.norm_before_residual)
    for field in gguf.GGUFReader(gguf_file).fields.values():
        if field.name.startswith("tokenizer."):
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(field.name, field.contents())
            else:
                writer.add_key_value(field.name, field.contents(), field.types[0])
    heads = {"blk.0.attn_q": shape.heads, "blk.0.attn_k": shape.kv_heads}
    for ours, theirs in TENSORS.items():
        weight = weights[f"{ours}.weight"].float().numpy()
        if count := heads.get(theirs):
            # Rows that a position turns against one another are neighbours there, as in builtin.py.
            halves = weight.reshape(count, 2, shape.head_dim // 2, -1)
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{theirs}.weight", np.ascontiguousarray(weight))
    usual = shape.theta ** (-np.arange(shape.head_dim // 2) / (shape.head_dim // 2))
    scaled = (usual / np.array(shape.turns)).astype(np.float32)
    if not np.allclose(scaled, 1, atol=1e-4):
        writer.add_tensor("rope_freqs.weight", scaled)
    ids = weights["d2t"].numpy() + np.arange(shape.vocabulary)
    writer.add_tensor("d2t", ids.astype(np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
