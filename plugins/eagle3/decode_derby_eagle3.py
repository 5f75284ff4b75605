"""EAGLE-3 (arXiv 2503.01840) as a column of Decode Derby: a draft of one or a few decoder layers
that reads the hidden states of several of the model's layers. It runs beside its model on torch.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from backend.drafters.network_drafter import NetworkDrafter
from backend.engines.base import Engine
from backend.engines.draft import DraftNetwork
from backend.errors import DerbyError
from backend.models.files import model_folder
from backend.strategies.declaration import DrafterInputs, Strategy, Values
from backend.strategies.equivalent import Equivalent
from backend.strategies.settings import NAMED_SIZE, Flag, ModelChoice, WholeNumber

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
        raise DerbyError("EAGLE-3 needs a draft: name its folder or Hub id, eagle3:draft=NAME.")
    if not isinstance(target, TorchEngine):
        raise DerbyError(
            f"An EAGLE-3 draft runs beside its model on torch, and {target.spec} does not run "
            "there: choose the torch engine."
        )
    folder = model_folder(name, lambda _: None)
    loaded = _LOADED.setdefault(target, {})
    if folder not in loaded:
        from decode_derby_eagle3_draft import LoadedDraft

        loaded[folder] = LoadedDraft(folder, target.model)
    return loaded[folder].open


def build(inputs: DrafterInputs) -> NetworkDrafter:
    if inputs.draft is None:
        raise DerbyError(f"EAGLE-3 has no draft: {inputs.missing}.")
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
    "A published draft reads the hidden states of three of the model's layers and guesses up to k "
    "tokens; the model checks them all in one pass.",
    settings=(
        Flag("auto", "Auto", "Draft the fastest number of tokens, at most k.", default=True),
        WholeNumber("k", "k", "Tokens drafted per pass.", 8, 1, 16, fixes=NAMED_SIZE),
        ModelChoice(
            "draft",
            "Draft",
            "A draft for this model, in the format of its authors or of speculators.",
            NONE,
            ((NONE, "none"),),
        ),
    ),
    gist="A draft reads three layers and guesses",
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
