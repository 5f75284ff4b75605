"""Of a checkpoint that reads images too, the language model is loaded, whatever its weights are
called there.
"""

from pathlib import Path
from typing import Any

import families
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from backend.engines.torch.engine import TorchEngine, open_torch, text_config
from backend.errors import DerbyError
from backend.types import Logits, ModelSpec, chain_parents

TOKENS = [5, 9, 11, 200, 7, 33]


def opened(folder: Path) -> TorchEngine:
    return open_torch(ModelSpec(str(folder), "torch"), print)


def logits(engine: TorchEngine) -> Logits:
    return engine.open().forward(TOKENS, chain_parents(6), range(6))


def renamed(folder: Path, *changes: tuple[str, str]) -> None:
    """Call the weights of a checkpoint otherwise."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    for old, new in changes:
        weights = {name.replace(old, new, 1): weight for name, weight in weights.items()}
    save_file(weights, path, metadata={"format": "pt"})


def test_weights_have_old_names_or_new_ones(tmp_path: Path) -> None:
    """Checkpoints of before transformers 4.52 call the language model's otherwise."""
    folder = families.make("mistral3", tmp_path / "model")
    new = logits(opened(folder))
    renamed(folder, ("model.language_model.", "language_model.model."))
    renamed(folder, ("lm_head.", "language_model.lm_head."))
    assert (logits(opened(folder)) == new).all()


def test_a_model_is_loaded_without_what_only_reads_images(tmp_path: Path) -> None:
    """Gemma 3n's pictures need a package that is not installed; its text needs none of it."""
    stated = dict(families.FAMILIES["gemma3n"])
    folder = families.make("gemma3n", tmp_path / "model")
    alone = logits(opened(folder))
    renamed(folder, ("model.", "model.language_model."))
    AutoConfig.for_model("gemma3n", text_config=stated).save_pretrained(folder)
    assert (logits(opened(folder)) == alone).all()


def test_weights_that_read_images_are_not_kept(tmp_path: Path) -> None:
    engine = opened(families.make("mistral3", tmp_path / "model"))
    config: Any = AutoConfig.from_pretrained(tmp_path / "model")
    with torch.device("meta"):
        whole = families.auto_class(config).from_config(config)
    assert 0 < engine.weight_bytes < 4 * sum(each.numel() for each in whole.parameters())


def test_a_model_that_does_not_go_on_with_a_text_is_refused() -> None:
    with pytest.raises(DerbyError, match="'t5'"):
        text_config(AutoConfig.for_model("t5"))
    with pytest.raises(DerbyError, match="'qwen2_5_vl'"):
        text_config(AutoConfig.for_model("qwen2_5_vl"))
