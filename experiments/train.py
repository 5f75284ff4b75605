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
from backend.engines.eagle3.checkpoint import INPUT, OUTPUT, tensor_of
from backend.engines.eagle3.network import Eagle3
from backend.errors import DerbyError, check_range
from backend.models.files import Say
from experiments.chats import USUAL, Caps
from experiments.fit import Recipe, Teacher, evaluate, fit, frequent_tokens, new_draft, scale_of
from experiments.shards import SEED, Shard, Target, synthesise, whole

#: The checkpoint below the folder, and its parts.
DRAFT, CONFIG, WEIGHTS = "draft", "config.json", "model.safetensors"

#: The weight that reads the target's states.
FUSING = "fc.weight"

REPORT = "report.json"

#: Fewer have no three layers apart that a draft could read.
LEAST_LAYERS = 7

#: Draft steps that the report judges, and batches of held-out text that are judged on the way.
JUDGED, FEW = 4, 4

#: What the recipe has instead on CUDA. Small batches leave a GPU idle; larger ones mean fewer
#: steps, which can take a higher rate.
LARGE = {"batch": 8192, "rate": 1.2e-3}


def train(
    folder: Annotated[
        Path, typer.Argument(help="For data and draft; 8 D bytes a token, D being the hidden size.")
    ],
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
    """Fill `folder` with shards, features, a draft that was fitted for `seconds`, and a report.

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
    draft, teacher, tokens = started(folder / DRAFT, target, recipe, shards[1:], resume=resume)
    for progress in fit(draft, teacher, shards[1:], recipe, seconds):
        hits = evaluate(draft, teacher, shards[:1], recipe, JUDGED, FEW)
        say(f"{progress}; {tokens_per_pass(hits):.2f} tokens per pass on held-out text")
        write_checkpoint(folder / DRAFT, draft, teacher, tokens, target)
    fitted = monotonic()
    draft, teacher, _ = started(folder / DRAFT, target, recipe, shards[1:], resume=True)
    hits = evaluate(draft, teacher, shards[:1], recipe, JUDGED)  # as stored
    weights = (folder / DRAFT / WEIGHTS).read_bytes()
    report = {
        "target": target.files.fingerprint,
        "trained": _tokens_by_writer(shards[1:]),
        "held out": _tokens_by_writer(shards[:1]),
        "seconds": [round(synthesised - began), round(read - synthesised), round(fitted - read)],
        "right at each draft step": [round(hit, 4) for hit in hits],
        "tokens per pass": round(tokens_per_pass(hits), 3),
        "draft": {"bytes": len(weights), "sha256": sha256(weights).hexdigest()},
        "recipe": asdict(recipe),
        "resumed": resume,
        "seeds": {"synthesis": SEED, "fit": recipe.seed},
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    with whole(folder / REPORT) as file:
        file.write(json.dumps(report, indent=1).encode() + b"\n")
    return report


def write_checkpoint(
    folder: Path, draft: Eagle3, teacher: Teacher, tokens: NDArray[np.int64], target: Target
) -> None:
    """Write the draft as EAGLE-3's authors publish theirs: `midlayer`, and of each of the `tokens`
    [V'] that it drafts the distance of its id to the target's.
    """
    from safetensors.torch import save_file

    shape, ids, own = draft.shape, torch.from_numpy(tokens), Path(target.files.folder) / CONFIG
    weights = {
        name: value.detach().bfloat16().cpu().contiguous()
        for name, value in (draft.state_dict() | {FUSING: draft.fc.weight / teacher.scale}).items()
    }
    drafted = torch.zeros(target.files.vocab_size, dtype=torch.bool)
    drafted[ids] = True
    weights |= {"d2t": ids - torch.arange(len(ids)), "t2d": drafted}
    theirs = json.loads(own.read_text(encoding="utf-8"))
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "vocab_size": target.files.vocab_size,
        "draft_vocab_size": shape.vocabulary,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.theta,
        "eagle_aux_hidden_state_layer_ids": target.reads,
        "hidden_act": "silu",
        "max_position_embeddings": theirs["max_position_embeddings"],
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "torch_dtype": "bfloat16",
        **{name: theirs.get(name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")},
    }
    folder.mkdir(exist_ok=True)
    with whole(folder / CONFIG) as file:
        file.write(json.dumps(config, indent=1).encode() + b"\n")
    partial = folder / f"{WEIGHTS}.partial"
    save_file(weights, partial, metadata={"format": "pt"})
    partial.replace(folder / WEIGHTS)


def recipe_for(target: Target) -> Recipe:
    """The default recipe for this machine. Raises DerbyError if the target has no three layers that
    a draft could read.
    """
    config = json.loads((target.files.folder / CONFIG).read_text(encoding="utf-8"))
    kind, layers = config["model_type"], config["num_hidden_layers"]
    if kind != "llama" or layers < LEAST_LAYERS:
        raise DerbyError(
            f"A draft reads three of its target's layers, at least {LEAST_LAYERS} of model_type "
            f"'llama', and this target has {layers} of {kind!r}: choose a Llama-shaped target."
        )
    return replace(Recipe(), **LARGE) if torch.cuda.is_available() else Recipe()


def tokens_per_pass(hits: Sequence[float]) -> float:
    """What a pass of the target would give with all guesses of a round of as many draft steps, each
    right so often behind right ones.
    """
    return 1 + float(np.cumprod(hits).sum())


def started(
    folder: Path, target: Target, recipe: Recipe, shards: Sequence[Shard], *, resume: bool
) -> tuple[Eagle3, Teacher, NDArray[np.int64]]:
    """The draft to fit, whom it learns from, and the tokens [V'] that it can draft: new, or of an
    earlier run. The first shard shows the states' scale.
    """
    from safetensors.torch import load_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    stored = load_file(folder / WEIGHTS) if resume and (folder / WEIGHTS).exists() else {}
    if (offsets := stored.pop("d2t", None)) is not None:
        tokens = (offsets + torch.arange(len(offsets))).numpy()
    else:
        tokens = frequent_tokens(shards, recipe.vocabulary, target.files.vocab_size)
    scale = scale_of(shards[0], 3 * target.width)
    draft = new_draft(target.files.folder, tokens, scale, recipe.seed)
    if stored:
        stored.pop("t2d")
        draft.load_state_dict(stored | {FUSING: stored[FUSING] * scale})
    output = tensor_of(target.files.folder, OUTPUT, INPUT)[torch.from_numpy(tokens)]
    return (
        draft.to(device),
        Teacher(output.to(device, torch.bfloat16), scale.to(device)),
        tokens,
    )


def _tokens_by_writer(shards: Sequence[Shard]) -> dict[str, int]:
    kinds = np.zeros(4, dtype=np.int64)
    for shard in shards:
        with np.load(shard.path) as stored:
            kinds += np.bincount(stored["kind"], minlength=4)
    names = ("given", "questions", "greedy answers", "sampled answers")
    return dict(zip(names, kinds.tolist(), strict=True))
