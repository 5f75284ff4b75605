"""A trained draft for other programs: all four libraries' forms of it, below one folder."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from backend.engines.eagle3.checkpoint import Checkpoint, read_checkpoint
from backend.libraries.draft import FILE, tensors, write_gguf, write_graph
from backend.libraries.llamacpp import EAGLE3
from backend.models.files import HUB_ID, Say, model_files, read_object
from backend.strategies.libraries import DRAFT_TOKENS
from backend.types import ModelSpec

#: What generate() of transformers runs with it.
CODE = Path(__file__).parent / "generate"

#: Tokens that a draft usually guesses.
K: int = DRAFT_TOKENS.default


def written_draft(
    checkpoint: Path, target: ModelSpec, gguf: Path | None, folder: Path, say: Say
) -> Iterator[tuple[str, Path, str]]:
    """Write the draft of a target in each library's form; its title, where that lies, and how it is
    loaded. `gguf`: the target's file, without which llama.cpp has none. Raises DerbyError.
    """
    draft, name = read_checkpoint(checkpoint, target, say), checkpoint.name

    def place(library: str) -> Path:
        (folder / library).mkdir(parents=True, exist_ok=True)
        return folder / library

    graph = place("openvino-genai")
    write_graph(draft, graph, name)
    yield "openvino-genai", graph, f"draft_model=genai.draft_model({str(graph)!r}, 'CPU')"
    if gguf is not None:
        file = place("llamacpp") / FILE
        write_gguf(draft, gguf, file, name)
        yield "llama.cpp", file, f"llama-server --model-draft {file} --spec-type {EAGLE3}"
    speculator = place("vllm")
    write_speculators(draft, target, speculator, name)
    config = {"method": "eagle3", "model": str(speculator), "num_speculative_tokens": K}
    yield "vLLM", speculator, f"speculative_config={config}"
    code = place("transformers")
    shutil.copytree(CODE, code, dirs_exist_ok=True)
    for file in (*checkpoint.glob("*.json"), *checkpoint.glob("*.safetensors")):
        shutil.copy(file, code)
    options = f"custom_generate={str(code)!r}, strategy='hybrid', draft={str(code)!r}"
    yield "transformers", code, f"model.generate(**inputs, {options})"


def write_speculators(draft: Checkpoint, target: ModelSpec, folder: Path, name: str) -> None:
    """Write a draft as `speculators` does, whose configuration vLLM reads."""
    from safetensors.torch import save_file

    weights, shape = tensors(draft, name), draft.network.shape
    files = model_files(target.name, lambda _: None)
    verifier = read_object(files.folder / "config.json", target.name)
    layer = {
        "model_type": "llama",
        "vocab_size": len(weights["t2d"]),
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": 1,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "rms_norm_eps": shape.eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": shape.theta},
        "max_position_embeddings": files.max_context,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
    }
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {"proposal_type": "greedy", "speculative_tokens": K},
            ],
            "verifier": {
                "name_or_path": target.name if HUB_ID.fullmatch(target.name) else str(files.folder),
                "architectures": verifier.get("architectures", []),
            },
        },
        "transformer_layer_config": layer,
        "draft_vocab_size": shape.vocabulary,
        "eagle_aux_hidden_state_layer_ids": list(draft.layers),
        "norm_before_residual": shape.norm_before_residual,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    stored = {
        key: weight.bfloat16() if weight.is_floating_point() else weight
        for key, weight in weights.items()
    }
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
