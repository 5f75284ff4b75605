"""EAGLE-3 (arXiv 2503.01840) as a column of Decode Derby: a draft of one or a few decoder layers
that reads the hidden states of several of the model's layers. It runs beside its model on torch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from backend.drafters.network_drafter import NetworkDrafter
from backend.engines.draft import DraftNetwork
from backend.engines.engine import Engine, no_trained_draft
from backend.errors import DerbyError
from backend.models.files import model_folder
from backend.strategies.declaration import DrafterInputs, Equivalent, Strategy, Values
from backend.strategies.settings import AUTO, K_HELP, NAMED_SIZE, ModelChoice, WholeNumber

if TYPE_CHECKING:
    from decode_derby_eagle3_draft import LoadedDraft

#: The draft's name where none is named.
NONE = "none"

#: The drafts of each loaded model, which share its embeddings and go with it, by their folders.
_LOADED: "WeakKeyDictionary[Engine, dict[Path, LoadedDraft]]" = WeakKeyDictionary()


def weights(values: Values, target: Engine) -> Callable[[], DraftNetwork]:
    """What opens the draft's network for a text; loaded once for a model. Raises DerbyError for a
    folder that holds no EAGLE-3 draft, or one for another model.
    """
    from backend.engines.torch.engine import TorchEngine

    name = values["draft"]
    if name == NONE:
        raise DerbyError("EAGLE-3 needs a draft: write eagle3:draft=NAME.")
    if not isinstance(target, TorchEngine):
        raise no_trained_draft(target.spec)
    folder = model_folder(name, lambda _: None)
    loaded = _LOADED.setdefault(target, {})
    if folder not in loaded:
        from decode_derby_eagle3_draft import LoadedDraft

        loaded[folder] = LoadedDraft(folder, target.model)
    return loaded[folder].open


def build(inputs: DrafterInputs) -> NetworkDrafter:
    assert inputs.draft is not None  # noqa: S101 (`weights` opened one)
    tokenizer = inputs.target.tokenizer
    return NetworkDrafter(
        inputs.draft,
        inputs.sampler,
        inputs.draft_length(),
        tokenizer.eos_ids,
        tokenizer.vocab_size,
    )


EAGLE3 = Strategy(
    "eagle3",
    "EAGLE-3",
    "A published draft reads three of the model's layers and guesses up to k tokens.",
    settings=(
        AUTO,
        WholeNumber("k", "k", K_HELP, 8, 1, 16, fixes=NAMED_SIZE),
        ModelChoice(
            "draft",
            "Draft",
            "A draft that was trained for this model.",
            NONE,
            (NONE,),
        ),
    ),
    gist="A draft guesses",
    build=build,
    weights=weights,
    equivalent=lambda values: Equivalent(
        missing="EAGLE-3",
        vllm={
            "method": "eagle3",
            "model": values["draft"],
            "num_speculative_tokens": values["k"],
        },
    ),
    verified=(),
)
