"""Drafts as others publish them: folders of the `speculators` library or of a method's authors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import DerbyError
from backend.models.files import model_folder
from backend.models.hub import HUB_ID, fetched_folder
from backend.types import Layers

CONFIG = "config.json"

#: In a folder that `train` writes, the same EAGLE-3 draft in the format of the method's authors.
AUTHORS = "authors"

#: The kinds that run here, as configurations call them, and in sentences.
KINDS = {
    "eagle3": "EAGLE-3",
    "peagle": "P-EAGLE",
    "dflash": "DFlash",
    "medusa": "Medusa",
    "mtp": "MTP",
}

#: What else is published in the same format.
OTHERS = {"dflash2": "DFlash 2", "dspark": "DSpark", "eagle": "EAGLE"}

#: How the names of an MTP layer's tensors begin: in a model's own files (Qwen), and in a folder of
#: `speculators`. In others (DeepSeek) it is one more layer of the model.
MTP_PREFIXES = ("mtp.", "mtp_layers.0.")


@dataclass(frozen=True, slots=True)
class PublishedDraft:
    """A draft in `folder` of one of KINDS: EAGLE-3 (arXiv 2503.01840), P-EAGLE (arXiv 2602.01469),
    which predicts `block` tokens in one pass and reads `mask` in place of those it does not know,
    DFlash (arXiv 2602.06036), whose `block` begins with the last token, Medusa (arXiv 2401.10774),
    or an MTP layer, whose tensors' names begin with `prefix`.

    `layer`: the configuration of its decoder layers, of the family `family`; {}: the target's.
    `reads`: layers of the target whose hidden states it reads; (): the usual ones. The others are
    the flags of `speculators`: what is normalised on the way; of DFlash, whether the last token's
    row predicts too, and whether rows see those behind them in layers with a window.
    """

    folder: Path
    kind: str
    layer: Mapping[str, Any]
    reads: Layers = ()
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    block: int = 1
    mask: int = 0
    prefix: str = ""
    from_anchor: bool = False
    sees_ahead: bool = False

    @property
    def title(self) -> str:
        return KINDS[self.kind]

    @property
    def family(self) -> str:
        return self.layer.get("model_type", "llama")

    @property
    def count(self) -> int:
        """How many of the target's layers it reads."""
        return len(self.reads) or 3

    def layers(self, count: int) -> Layers:
        """Those of a target with so many layers. Raises DerbyError if it has too few."""
        reads = self.reads or usual_layers(count)
        if not 0 <= min(reads) <= max(reads) < count:
            raise DerbyError(
                f"The draft {self.folder.name} reads the target's layers "
                f"{', '.join(map(str, reads))}, and this target has {count}: choose a draft that "
                "was trained for it."
            )
        return reads


def usual_layers(count: int) -> Layers:
    """Those that EAGLE-3 reads of a target with so many, unless its configuration says others. In
    ascending order, as every server collects them.
    """
    return tuple(sorted((2, count // 2, count - 3)))


def folder_of(name: str) -> Path:
    """The folder of the draft called `name`: a folder, or a Hub id, fetched before."""
    return fetched_folder(name) if HUB_ID.fullmatch(name) else Path(name).expanduser()


def is_published(name: str) -> bool:
    """Whether a draft of this name is a folder with something else than a whole model."""
    return bool(_kind(_config(folder_of(name))))


def read_published(folder: Path) -> PublishedDraft:
    """What the folder holds: a draft, or a model with an MTP layer. Raises DerbyError if it is
    neither.
    """
    config = _config(folder)
    kind = _kind(config)
    if not kind and (prefix := own_mtp_prefix(folder)):
        return PublishedDraft(folder, "mtp", {}, prefix=prefix)
    if kind not in KINDS:
        *most, last = KINDS.values()
        raise DerbyError(
            f"The draft {folder.name} is a {OTHERS.get(kind, kind or 'model')} draft, which cannot "
            f"run here yet: choose an {', '.join(most)} or {last} draft, or a draft model with its "
            "tokenizer."
        )
    layer = config.get("transformer_layer_config", config)
    if kind == "mtp":
        return PublishedDraft(folder, kind, layer, prefix=MTP_PREFIXES[1])
    if kind == "dflash":
        return _dflash(folder, config)
    if kind == "medusa":  # its files alone say what it is like
        return PublishedDraft(folder, kind, {})
    reads = config.get("eagle_aux_hidden_state_layer_ids") or (
        config.get("eagle_config") or {}
    ).get("eagle_aux_hidden_state_layer_ids")
    return PublishedDraft(
        folder,
        kind,
        layer,
        tuple(reads or ()),
        bool(config.get("norm_before_residual")),
        bool(config.get("norm_before_fc")),
        bool(config.get("fc_norm")),
        bool(config.get("norm_output")),
        _block(config) if kind == "peagle" else 1,
        config.get("mask_token_id") or 0,
    )


def _dflash(folder: Path, config: Mapping[str, Any]) -> PublishedDraft:
    """A DFlash draft, in either format. Its authors count the layers from behind the first one.
    Raises DerbyError if it does not say which token masks those to come.
    """
    own = config.get("dflash_config") or {}
    reads = config.get("aux_hidden_state_layer_ids") or [
        layer + 1 for layer in own.get("target_layer_ids") or ()
    ]
    mask = config.get("mask_token_id", own.get("mask_token_id"))
    if mask is None:
        raise DerbyError(
            f"The {CONFIG} of the draft {folder.name} states no mask_token_id, which DFlash reads "
            "in place of tokens to come: fetch it again, or choose another draft."
        )
    return PublishedDraft(
        folder,
        "dflash",
        config.get("transformer_layer_config", config),
        tuple(reads),
        from_anchor=bool(config.get("sample_from_anchor")),
        sees_ahead=bool(config.get("sliding_window_non_causal")),
        block=config.get("block_size") or own.get("block_size") or 8,
        mask=mask,
    )


def has_mtp(name: str) -> bool:
    """Whether the model called `name`, which is here, has an MTP layer of its own."""
    return bool(own_mtp_prefix(model_folder(name, lambda _: None)))


def own_mtp(name: str) -> Path:
    """The folder of the model called `name`, which is here. Raises DerbyError if it has no MTP
    layer.
    """
    folder = model_folder(name, lambda _: None)
    if not own_mtp_prefix(folder):
        raise DerbyError(
            f"The files of {name!r} have no MTP layer (no tensors mtp.*, nor a layer beyond those "
            "of its config.json): choose another draft."
        )
    return folder


def own_mtp_prefix(folder: Path) -> str:
    """How the names of a model's own MTP layer begin, among those of its tensors; "": it has
    none.
    """
    from safetensors import safe_open

    config = _config(folder)
    layers = config.get("text_config", config).get("num_hidden_layers")
    prefixes = (MTP_PREFIXES[0], f"model.layers.{layers}.")
    for path in sorted(folder.glob("*.safetensors"), reverse=True):  # it is usually the last
        with safe_open(path, "numpy") as file:
            for prefix in prefixes:
                if any(name.startswith(prefix) for name in file.offset_keys()):
                    return prefix
    return ""


def _block(config: Mapping[str, Any]) -> int:
    """How many tokens a pass predicts, as the draft was trained to."""
    methods = (config.get("speculators_config") or {}).get("proposal_methods") or ({},)
    return methods[0].get("speculative_tokens") or 8


def _config(folder: Path) -> dict[str, Any]:
    """The folder's configuration; nothing if there is none that can be read."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _kind(config: Mapping[str, Any]) -> str:
    """What kind of draft a configuration is of; "": it is a model's, or none."""
    if isinstance(kind := config.get("speculators_model_type"), str):
        return kind
    names = " ".join(map(str, config.get("architectures") or ())).lower()
    if "eagle3" in names:
        return "eagle3"
    if "medusa_num_heads" in config:  # its authors name no architecture, others the target's
        return "medusa"
    return next((kind for kind in (*OTHERS, "dflash", "medusa") if kind in names), "")
