"""What may be wrong with a checkpoint's files: each makes a whole folder one that is not."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Damage = Callable[[Path], None]


def stating(file: str, **facts: Any) -> Damage:
    """A JSON file that says this instead."""

    def damage(folder: Path) -> None:
        stated = json.loads((folder / file).read_text())
        (folder / file).write_text(json.dumps(stated | facts))

    return damage


def holding(file: str, text: str) -> Damage:
    """A file of this text alone."""
    return lambda folder: (folder / file).write_text(text) and None


def without(*files: str) -> Damage:
    def damage(folder: Path) -> None:
        for file in files:
            (folder / file).unlink(missing_ok=True)

    return damage


def with_weights(change: Callable[[dict[str, Any]], object]) -> Damage:
    """Other weights: `change` edits tensors of torch in place, by name."""

    def damage(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        file = folder / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file(tensors, file, metadata={"format": "pt"})

    return damage
