"""From a target's name to its draft: synthesis, features, fitting, and a report of all three.

python -m experiments train FOLDER
"""

import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray

from backend.cli.console import out, say
from backend.cli.options import Model
from backend.engines.heads.head import HeadShape, Weights, int8_rows, read_head
from backend.engines.heads.torch import TorchHead
from backend.errors import DerbyError, check_range
from backend.models.files import Say
from experiments.chats import USUAL, Caps
from experiments.fit import Recipe, evaluate, fit, frequent_tokens, new_head
from experiments.shards import SEED, Shard, Target, synthesise, whole

HEAD = "head.safetensors"
REPORT = "report.json"

#: Draft steps that the report judges, and batches of held-out text that are judged on the way.
JUDGED, FEW = 4, 4

#: What the recipe has instead on CUDA. Small batches leave a GPU idle. Larger ones mean fewer
#: steps, which can take a higher rate, and there is time to train the later draft steps longer.
LARGE = {"batch": 8192, "rate": 1e-3, "steps": (1, 2, 2, 3, 3, 3)}


def train(
    folder: Annotated[Path, typer.Argument(help="For data and draft; about 1.2 kB per token.")],
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="The least tokens of answers to generate.")
    ] = 12_000_000,
    minutes: Annotated[float, typer.Option(help="How many minutes to fit.")] = 240.0,
    model: Model = "built-in",
    *,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the folder's draft.")
    ] = False,
) -> None:
    """Train a draft on conversations that the model writes; goes on if interrupted."""
    check_range("minutes", minutes, 0.01, 60 * 24 * 365)
    target = Target(model, say)
    report = make(folder, answer_tokens, 60 * minutes, target, recipe_for(target), resume=resume)
    out.print_json(json.dumps(report))


def make(
    folder: Path,
    answer_tokens: int,
    seconds: float,
    target: Target,
    recipe: Recipe,
    *,
    resume: bool = False,
    caps: Caps = USUAL,
    say: Say = say,
) -> dict[str, Any]:
    """Fill `folder` with shards, features, a head that was fitted for `seconds`, and a report.

    What an earlier run finished is kept. Shard 0 is held out: its hit rates are the report's.
    Raises DerbyError for a target or a folder that will not do.
    """
    began = monotonic()
    shards = synthesise(folder, answer_tokens, target, say, caps)
    if len(shards) < 2:
        raise DerbyError(
            f"{answer_tokens} tokens of answers make only the one file that is held out: ask for "
            "twice as many or more."
        )
    synthesised = monotonic()
    for number, shard in enumerate(shards, 1):
        shard.add_features(target.features)
        say(f"features of {number} of {len(shards)} files")
    read = monotonic()
    path = folder / HEAD
    head, tokens = _started(path, target, recipe, shards[1:], resume=resume)
    for progress in fit(head, shards[1:], recipe, seconds):
        hits = evaluate(head, shards[:1], recipe, JUDGED, FEW)
        say(f"{progress}; {tokens_per_pass(hits):.2f} tokens per pass on held-out text")
        weights = {n: value.float().cpu().numpy() for n, value in head.state_dict().items()}
        write_head(path, head.shape, weights, tokens, target.files.fingerprint)
    fitted = monotonic()
    hits = evaluate(_as_shipped(head, path), shards[:1], recipe, JUDGED)
    report = {
        "target": target.files.fingerprint,
        "trained": _tokens_by_writer(shards[1:]),
        "held out": _tokens_by_writer(shards[:1]),
        "seconds": [round(synthesised - began), round(read - synthesised), round(fitted - read)],
        "right at each draft step": [round(hit, 4) for hit in hits],
        "tokens per pass": round(tokens_per_pass(hits), 3),
        "head": {"bytes": path.stat().st_size, "sha256": sha256(path.read_bytes()).hexdigest()},
        "recipe": asdict(recipe),
        "resumed": resume,
        "seeds": {"synthesis": SEED, "fit": recipe.seed},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    with whole(folder / REPORT) as file:
        file.write(json.dumps(report, indent=1).encode() + b"\n")
    return report


def write_head(
    path: Path, shape: HeadShape, weights: Weights, tokens: NDArray[np.int64], target: str
) -> None:
    """Write `path`, whole or not at all. `target` is the fingerprint of the model it is for."""
    from safetensors.numpy import save_file

    arrays: dict[str, NDArray[np.generic]] = {"tokens": tokens.astype(np.int32)}
    for name, value in weights.items():
        if value.ndim == 2:
            arrays[name], arrays[f"{name}.scale"] = int8_rows(value)
        else:
            arrays[name] = value.astype(np.float32)
    partial = path.with_suffix(".partial")
    save_file(arrays, partial, metadata={"shape": json.dumps(asdict(shape)), "target": target})
    partial.replace(path)


def recipe_for(target: Target) -> Recipe:
    """The default recipe with the target's own last layer. Raises DerbyError if a draft cannot be
    cut out of the target's layers.
    """
    config = json.loads((target.files.folder / "config.json").read_text())
    kind, layers = config["model_type"], config["num_hidden_layers"]
    if kind != "llama" or layers < 3:
        raise DerbyError(
            "A draft is cut out of its target's layers, at least three of model_type 'llama', and "
            f"this target has {layers} of {kind!r}: choose a Llama-shaped target."
        )
    usual = replace(Recipe(), sources=(0, 1, layers - 1))
    return replace(usual, **LARGE) if torch.cuda.is_available() else usual


def tokens_per_pass(hits: Sequence[float]) -> float:
    """What a pass of the target would give with all guesses of a round of as many draft steps, each
    right so often behind right ones.
    """
    return 1 + float(np.cumprod(hits).sum())


def _started(
    path: Path, target: Target, recipe: Recipe, shards: Sequence[Shard], *, resume: bool
) -> tuple[TorchHead, NDArray[np.int64]]:
    """The head to fit and the tokens that it can draft: new, or that of an earlier run."""
    resume = resume and path.exists()
    tokens = (
        read_head(path).tokens
        if resume
        else frequent_tokens(shards, recipe.vocabulary, target.files.vocab_size)
    )
    head = new_head(target.files.folder, tokens, recipe)
    if resume:
        head = _as_shipped(head, path)
    return head.to("cuda" if torch.cuda.is_available() else "cpu"), tokens


def _as_shipped(head: TorchHead, path: Path) -> TorchHead:
    """The head with the weights that the file holds, rounded as they are there."""
    weights = read_head(path).weights
    head.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
    return head


def _tokens_by_writer(shards: Sequence[Shard]) -> dict[str, int]:
    kinds = np.zeros(4, dtype=np.int64)
    for shard in shards:
        with np.load(shard.path) as stored:
            kinds += np.bincount(stored["kind"], minlength=4)
    names = ("given", "questions", "greedy answers", "sampled answers")
    return dict(zip(names, kinds.tolist(), strict=True))
