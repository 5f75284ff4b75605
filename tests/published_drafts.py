"""Published drafts in tests: how they are written, and that they compute what they should."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from backend.engines.heads.published import read_published
from backend.engines.heads.torch_draft import open_published
from backend.engines.torch.engine import TorchEngine


def assert_like_speculators(folder: Path, target: TorchEngine, reference: dict[str, Any]) -> None:
    """Hold the draft's logits against those that `speculators` computed with its weights."""
    tokens, states = reference["tokens"].tolist(), reference["states"].numpy()
    logits = reference["logits"].numpy()  # [step, place, V']
    network = open_published(read_published(folder), target).open()
    held = 0
    for end in (1, 2, 5, 6, 10):  # read in parts, each after guesses that are forgotten
        found = network.read(held, tokens[held:end], states[held:end], wanted=True)
        assert np.abs(found[0] - logits[0, end - 1]).max() < 1e-5
        for step in (1, 2):
            found = network.guess(end + step - 1, tokens[end + step - 1])
            assert np.abs(found[0] - logits[step, end - 1]).max() < 1e-5
        assert network.rewind(end) == end
        held = end
    network.close()


def write(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
    """Make a draft's folder of that configuration and those weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in weights.items()}, folder / "w.safetensors")
    return folder
