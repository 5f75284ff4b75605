"""A trained draft for other programs: all four libraries' forms of it, below one folder."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

from backend.libraries.draft import FILE, layer_config, read_draft, write_gguf, write_graph
from backend.libraries.llamacpp import EAGLE3
from backend.libraries.transformers import OWN_CODE
from backend.models.files import HUB_ID, model_folder, read_object
from backend.strategies.libraries import DRAFT_TOKENS
from backend.types import ModelSpec

#: Tokens that a draft usually guesses.
K: int = DRAFT_TOKENS.default


def written_draft(
    checkpoint: Path, target: ModelSpec, gguf: Path | None, folder: Path
) -> Iterator[tuple[str, Path, str]]:
    """Write the draft of a target in each library's form; its title, where that lies, and how it is
    loaded. `gguf`: the target's file, without which llama.cpp has none. Raises DerbyError.
    """

    def place(library: str) -> Path:
        (folder / library).mkdir(parents=True, exist_ok=True)
        return folder / library

    graph = place("openvino-genai")
    write_graph(checkpoint, target, graph)
    yield "openvino-genai", graph, f"draft_model=genai.draft_model({str(graph)!r}, 'CPU')"
    if gguf is not None:
        file = place("llamacpp") / FILE
        write_gguf(checkpoint, target, gguf, file)
        yield "llama.cpp", file, f"llama-server --model-draft {file} --spec-type {EAGLE3}"
    speculator = place("vllm")
    write_speculators(checkpoint, target, speculator)
    config = {"method": "eagle3", "model": str(speculator), "num_speculative_tokens": K}
    yield "vLLM", speculator, f"speculative_config={config}"
    code = place("transformers")
    compiled = shutil.ignore_patterns("__pycache__")
    shutil.copytree(OWN_CODE, code, ignore=compiled, dirs_exist_ok=True)
    for file in (*checkpoint.glob("*.json"), *checkpoint.glob("*.safetensors")):
        shutil.copy(file, code)
    options = f"custom_generate={str(code)!r}, strategy='hybrid', draft={str(code)!r}"
    yield "transformers", code, f"model.generate(**inputs, {options})"


def write_speculators(checkpoint: Path, target: ModelSpec, folder: Path) -> None:
    """Write a draft as `speculators` does, whose configuration vLLM reads."""
    from safetensors.torch import save_file

    draft, weights = read_draft(checkpoint, target)
    model = model_folder(target.name, lambda _: None)
    verifier = {
        "name_or_path": target.name if HUB_ID.fullmatch(target.name) else str(model),
        "architectures": read_object(model / "config.json", target.name)["architectures"],
    }
    config = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": K}],
            "verifier": verifier,
        },
        "transformer_layer_config": layer_config(checkpoint) | {"model_type": "llama"},
        "draft_vocab_size": len(weights["d2t"]),
        "eagle_aux_hidden_state_layer_ids": draft.layers,
        "norm_before_residual": draft.network.shape.norm_before_residual,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    stored = {
        name.replace("midlayer.", "layers.0."): w.bfloat16() if w.is_floating_point() else w
        for name, w in weights.items()
    }
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
