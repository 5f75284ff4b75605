"""A trained draft in the form of the library that runs it, made once of an EAGLE-3 checkpoint: an
OpenVINO graph for openvino-genai, a GGUF file for llama.cpp.

All of them read a row as our own network does: a token, and the inputs of three of the target's
layers at the token before it. (openvino-genai looks behind layers 2, n/2 and n - 3 of n, whatever
the checkpoint says: these are the inputs of 3, n/2 + 1 and n - 2.)
"""

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backend.engines.eagle3.checkpoint import Checkpoint, draft_for, is_eagle3, read_checkpoint
from backend.engines.engine import no_trained_draft
from backend.engines.openvino.export import CONVERTERS
from backend.errors import DerbyError
from backend.libraries.library import TRAINED, require_package
from backend.models.files import IR, Say, fingerprint_of, model_folder
from backend.models.prepared import prepared, versions
from backend.types import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

#: Raise it whenever the code below writes something else.
RECIPE = "draft v1"

#: What llama.cpp's file is called, and what its first layer's tensors are.
FILE = "draft.gguf"
TENSORS = {
    "input_layernorm": "attn_norm",
    "hidden_norm": "attn_norm_2",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def trained_for(target: ModelSpec) -> Path:
    """The folder of the draft that was trained for this model. Raises DerbyError for none."""
    if folder := draft_for(target):
        return folder
    raise no_trained_draft(target.name)


def checkpoint_of(draft: str, target: ModelSpec) -> Path | None:
    """The folder of the EAGLE-3 draft that a setting names; None: it names another model. Raises
    DerbyError if there is none.
    """
    if draft == TRAINED:
        return trained_for(target)
    folder = model_folder(draft, lambda _: None)
    return folder if is_eagle3(folder) else None


def genai_draft(checkpoint: Path, target: ModelSpec, say: Say) -> Path:
    """The folder of a draft's graph, made if need be. Raises DerbyError for one that does not fit
    the target, or has what the library's graphs lack.
    """
    key = f"{RECIPE} of {fingerprint_of(checkpoint)} for {target.name} by {versions(*CONVERTERS)}"

    def build(folder: Path) -> None:
        say(f"Converting the draft {checkpoint.name} to OpenVINO...")
        write_graph(read_checkpoint(checkpoint, target, say), folder, checkpoint.name)

    return prepared(_name("openvino-genai", checkpoint), key, build, say)


def gguf_draft(checkpoint: Path, target: ModelSpec, gguf: Path, say: Say) -> Path:
    """The draft's GGUF file, made if need be, with the tokenizer of the target's. Raises
    DerbyError.
    """
    require_package("gguf")
    key = f"{RECIPE} of {fingerprint_of(checkpoint)} for {gguf} by {versions('gguf')}"

    def build(folder: Path) -> None:
        say(f"Converting the draft {checkpoint.name} to GGUF...")
        write_gguf(read_checkpoint(checkpoint, target, say), gguf, folder / FILE, checkpoint.name)

    return prepared(_name("llamacpp", checkpoint), key, build, say) / FILE


def _name(library: str, checkpoint: Path) -> str:
    """Of a prepared folder."""
    return f"draft-{library}-{fingerprint_of(checkpoint)[:16]}"


def tensors(draft: Checkpoint, name: str) -> dict[str, "Tensor"]:
    """The draft's tensors by their names in speculators' files, with the map of its vocabulary:
    each draftable token's distance to its id. Raises DerbyError for one with several layers or
    another size than its target.
    """
    import torch

    network, shape = draft.network, draft.network.shape
    if shape.layers != 1 or shape.hidden * len(draft.layers) != shape.states:
        raise _unfit(name, "more than one layer, or another size than its target")
    size, ids = shape.vocabulary, draft.vocabulary
    drafted = torch.arange(size) if ids is None else torch.from_numpy(ids)
    drafts = torch.zeros(len(network.embedding), dtype=torch.bool)
    drafts[drafted] = True
    weights = {key: value.detach() for key, value in network.state_dict().items()}
    return {**weights, "d2t": drafted - torch.arange(size), "t2d": drafts}


def _unfit(name: str, part: str) -> DerbyError:
    return DerbyError(
        f"The draft {name} has {part}, for which libraries have no form: race it as draft={name} "
        "of Speculative."
    )


def write_graph(draft: Checkpoint, folder: Path, name: str) -> None:
    """Write a draft as optimum-intel exports it. openvino-genai puts the target's embedding in
    place of the graph's, which is left empty.
    """
    import torch
    from optimum.exporters.openvino.convert import export
    from optimum.exporters.openvino.model_configs import LlamaOpenVINOConfig
    from optimum.exporters.openvino.model_patcher import LlamaEagle3ForCausalLM
    from optimum.intel import OVConfig
    from transformers import LlamaConfig

    weights, shape = tensors(draft, name), draft.network.shape
    if shape.norm_before_residual:
        raise _unfit(name, "a residual behind the norm")
    config = LlamaConfig(
        architectures=["LlamaForCausalLMEagle3"],
        vocab_size=len(weights["t2d"]),
        draft_vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=1,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        rms_norm_eps=shape.eps,
        rope_parameters={"rope_type": "default", "rope_theta": shape.theta},
    )
    model: Any = LlamaEagle3ForCausalLM(config).eval()
    model.model.embed_tokens.weight.data.zero_()
    named = {key.replace("layers.0.", "midlayer."): value for key, value in weights.items()}
    model.model.load_state_dict(named, strict=False)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about code that is not ours
        export(
            model,
            LlamaOpenVINOConfig(config, "text-generation", use_past=True, use_past_in_inputs=True),
            folder / IR[0],
            ov_config=OVConfig(dtype="fp32"),
            library_name="transformers",
        )
    config.to_json_file(folder / "config.json")


def write_gguf(draft: Checkpoint, target: Path, file: Path, name: str) -> None:
    """Write a draft for llama.cpp, with the tokenizer of the target's file."""
    import gguf
    import numpy as np

    weights, shape = tensors(draft, name), draft.network.shape
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
    for field in gguf.GGUFReader(target).fields.values():
        if field.name.startswith("tokenizer."):
            if field.types[0] == gguf.GGUFValueType.ARRAY:
                writer.add_array(field.name, field.contents())
            else:
                writer.add_key_value(field.name, field.contents(), field.types[0])
    matrices = {"fc": "fc", "norm": "output_norm", "lm_head": "output"}
    matrices |= {f"layers.0.{ours}": f"blk.0.{theirs}" for ours, theirs in TENSORS.items()}
    heads = {"attn_q": shape.heads, "attn_k": shape.kv_heads}
    for ours, theirs in matrices.items():
        weight = weights[f"{ours}.weight"].float().numpy()
        if count := heads.get(theirs.removeprefix("blk.0.")):
            # Rows that a position turns against one another are neighbours there, as in builtin.py.
            halves = weight.reshape(count, 2, shape.head_dim // 2, -1)
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{theirs}.weight", np.ascontiguousarray(weight))
    ids = weights["d2t"].numpy() + np.arange(shape.vocabulary)
    writer.add_tensor("d2t", ids.astype(np.int64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
