"""From a target's name to its draft: synthesis, features, fitting, and a report of all three."""

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backend.engines.heads.file import read_head, write_head
from backend.engines.heads.network import TorchHead
from backend.errors import DerbyError
from backend.models.files import ModelFiles, Say
from backend.training.chats import USUAL, Caps
from backend.training.fit import Recipe, evaluate, fit, frequent_tokens, new_head
from backend.training.shards import GIVEN, GREEDY, QUESTION, SAMPLED, Shard
from backend.training.synthesis import SEED, synthesise
from backend.training.targets import Target
from backend.training.whole_files import alone_in, whole

HEAD = "head.safetensors"
REPORT = "report.json"

#: The report's tokens per pass by the tokens trained on, on the few held-out batches.
CURVE = "curve"

#: Draft steps that the report judges.
JUDGED = 4

#: Batches of held-out text that are judged on the way.
FEW = 4

#: What the recipe has instead on CUDA. Small batches leave a GPU idle. Larger ones mean fewer
#: steps, which can take a higher rate, and there is time to train the later draft steps longer.
LARGE = {"batch": 8192, "rate": 1e-3, "steps": (1, 2, 2, 3, 3, 3)}

LIBRARIES = ("torch", "transformers", "openvino", "numpy")


@dataclass(frozen=True, slots=True)
class Work:
    """What a run does: at least so many tokens of answers, so long a fit, in seconds, and whether
    the fit goes on from the folder's head.
    """

    answer_tokens: int
    seconds: float
    recipe: Recipe
    resume: bool = False


def train(folder: Path, work: Work, target: Target, say: Say, caps: Caps = USUAL) -> dict[str, Any]:
    """Fill `folder` with shards, features, a head and a report; gives the report.

    What an earlier run finished is kept, so that an interrupted one goes on when it is run again.
    Shard 0 is held out: its hit rates are the report's. Raises DerbyError for a target or a folder
    that will not do.
    """
    _require_sources(work.recipe, target)
    with alone_in(folder):
        began = monotonic()
        shards = synthesise(folder, work.answer_tokens, target, say, caps)
        if len(shards) < 2:
            raise DerbyError(
                f"{work.answer_tokens} tokens of answers make only the one file that is held out: "
                "ask for twice as many or more."
            )
        synthesised = monotonic()
        for number, shard in enumerate(shards, 1):
            shard.add_features(target.features)
            say(f"features of {number} of {len(shards)} files")
        read = monotonic()
        head, tokens = _started(folder, work, shards[1:], target)
        path = folder / HEAD
        curve: list[tuple[int, float]] = []
        for progress in fit(head, shards[1:], work.recipe, work.seconds):
            hits = evaluate(head, shards[:1], work.recipe, JUDGED, FEW)
            curve.append((progress.seen, round(tokens_per_pass(hits), 3)))
            say(f"{progress.said}; {curve[-1][1]:.2f} tokens per pass on held-out text")
            state = head.state_dict().items()
            weights = {name: value.float().cpu().numpy() for name, value in state}
            write_head(path, head.shape, weights, tokens, target.files.fingerprint)
        fitted = monotonic()
        hits = evaluate(_as_shipped(head, path), shards[:1], work.recipe, JUDGED)
        seconds = {
            "synthesis": round(synthesised - began),
            "features": round(read - synthesised),
            "fit": round(fitted - read),
        }
        report = _report(folder, work, shards, target, hits, seconds) | {CURVE: curve}
        with whole(folder / REPORT) as file:
            file.write(json.dumps(report, indent=1).encode() + b"\n")
        return report


def recipe_for(target: Target) -> Recipe:
    """The default recipe with the target's own last layer. Raises DerbyError if it has no layers
    that a head can start from.
    """
    usual = Recipe()
    *most, _ = usual.sources
    fitting = replace(usual, sources=(*most, layers_of(target.files) - 1))
    if torch.cuda.is_available():
        fitting = replace(fitting, **LARGE)
    _require_sources(fitting, target)
    return fitting


def _require_sources(recipe: Recipe, target: Target) -> None:
    layers = layers_of(target.files)
    if max(recipe.sources) >= layers:
        raise DerbyError(
            f"The recipe starts from layer {max(recipe.sources)} and the target's {layers} layers "
            f"are 0 to {layers - 1}: choose sources among these, or a larger target."
        )


def layers_of(files: ModelFiles) -> int:
    """How many layers the target has. Raises DerbyError if a draft cannot be cut out of them."""
    config = json.loads((files.folder / "config.json").read_text())
    kind = config.get("model_type")
    if kind != "llama":
        raise DerbyError(
            "A draft is cut out of its target's layers, which must be those of model_type 'llama' "
            f"and not {kind!r}: choose a Llama-shaped target."
        )
    return config["num_hidden_layers"]


def tokens_per_pass(hits: Sequence[float]) -> float:
    """What a pass of the target would give with all guesses of a round of as many draft steps, each
    right so often behind right ones.
    """
    return 1 + float(np.cumprod(hits).sum())


def _started(
    folder: Path, work: Work, shards: Sequence[Shard], target: Target
) -> tuple[TorchHead, NDArray[np.int64]]:
    """The head to fit and the tokens that it can draft: new, or that of an earlier run."""
    model, path = target.files.folder, folder / HEAD
    if not (work.resume and path.exists()):
        tokens = frequent_tokens(shards, work.recipe.vocabulary, target.files.vocab_size)
        return _placed(new_head(model, tokens, work.recipe)), tokens
    tokens = read_head(path).tokens
    head = new_head(model, tokens, work.recipe)
    try:
        return _placed(_as_shipped(head, path)), tokens
    except RuntimeError as error:
        raise DerbyError(
            f"{path.name} in {str(folder)!r} was trained by another recipe: start again without "
            "--resume, or use its recipe."
        ) from error


def _placed(head: TorchHead) -> TorchHead:
    return head.to("cuda" if torch.cuda.is_available() else "cpu")


def _as_shipped(head: TorchHead, path: Path) -> TorchHead:
    """The head with the weights that the file holds, rounded as they are there."""
    weights = read_head(path).weights
    head.load_state_dict({name: torch.from_numpy(each) for name, each in weights.items()})
    return head


def _report(
    folder: Path,
    work: Work,
    shards: Sequence[Shard],
    target: Target,
    hits: Sequence[float],
    seconds: dict[str, int],
) -> dict[str, Any]:
    head = folder / HEAD
    return {
        "target": {"fingerprint": target.files.fingerprint},
        "data": {
            "shards": len(shards),
            "trained": _sizes(shards[1:]),
            "held out": _sizes(shards[:1]),
        },
        "seconds of this run": seconds,
        "right at each draft step": [round(hit, 4) for hit in hits],
        "tokens per pass": round(tokens_per_pass(hits), 3),
        "head": {
            "bytes": head.stat().st_size,
            "sha256": hashlib.sha256(head.read_bytes()).hexdigest(),
        },
        "recipe": asdict(work.recipe),
        "resumed": work.resume,
        "seeds": {"synthesis": SEED, "fit": work.recipe.seed},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in LIBRARIES},
        },
    }


def _version(library: str) -> str:
    """Not every machine that trains has all of them."""
    try:
        return version(library)
    except PackageNotFoundError:
        return "not installed"


def _sizes(shards: Sequence[Shard]) -> dict[str, int]:
    """Conversations, and tokens by who wrote them."""
    kinds, texts = np.zeros(4, dtype=np.int64), 0
    for shard in shards:
        with np.load(shard.path) as stored:
            kinds += np.bincount(stored["kind"], minlength=4)
            texts += len(stored["offsets"]) - 1
    return {
        "conversations": texts,
        "tokens": int(kinds.sum()),
        "given": int(kinds[GIVEN]),
        "questions": int(kinds[QUESTION]),
        "greedy answers": int(kinds[GREEDY]),
        "sampled answers": int(kinds[SAMPLED]),
    }
