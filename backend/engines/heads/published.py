"""Drafts as others publish them: folders of the `speculators` library, and of EAGLE-3's authors."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backend.errors import DerbyError
from backend.models.hub import HUB_ID, fetched_folder
from backend.types import Layers

CONFIG = "config.json"

#: What else is published in the same format, as its configuration calls it.
OTHERS = {
    "dflash": "DFlash",
    "dspark": "DSpark",
    "eagle": "EAGLE",
    "medusa": "Medusa",
    "mtp": "MTP",
}


@dataclass(frozen=True, slots=True)
class PublishedDraft:
    """An EAGLE-3 draft in `folder` (arXiv 2503.01840), or a P-EAGLE draft (arXiv 2602.01469), which
    predicts `block` tokens in one pass: it reads `mask` in place of those it does not know.

    `layer`: the configuration of its decoder layers, of the family `family`; `reads`: layers of the
    target whose hidden states it reads; (): the usual ones.
    The others are the flags of `speculators`: what is normalised on the way.
    """

    folder: Path
    layer: Mapping[str, Any]
    family: str
    reads: Layers
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    block: int = 1
    mask: int = 0

    @property
    def title(self) -> str:
        return "P-EAGLE" if self.block > 1 else "EAGLE-3"

    @property
    def count(self) -> int:
        """How many of the target's layers it reads."""
        return len(self.reads) or 3

    def layers(self, count: int) -> Layers:
        """Those of a target with so many layers. Raises DerbyError if it has too few."""
        reads = self.reads or (2, count // 2, count - 3)
        if not 0 <= min(reads) <= max(reads) < count:
            raise DerbyError(
                f"The draft {self.folder.name} reads the target's layers "
                f"{', '.join(map(str, reads))}, and this target has {count}: choose a draft that "
                "was trained for it."
            )
        return reads


def folder_of(name: str) -> Path:
    """The folder of the draft called `name`: a folder, or a Hub id, fetched before."""
    return fetched_folder(name) if HUB_ID.fullmatch(name) else Path(name).expanduser()


def is_published(name: str) -> bool:
    """Whether a draft of this name is a folder with something else than a whole model."""
    return bool(_kind(_config(folder_of(name))))


def read_published(folder: Path) -> PublishedDraft:
    """What the folder holds. Raises DerbyError if it is no EAGLE-3 draft, nor a P-EAGLE one."""
    config = _config(folder)
    kind = _kind(config)
    if kind not in ("eagle3", "peagle"):
        raise DerbyError(
            f"The draft {folder.name} is a {OTHERS.get(kind, kind or 'model')} draft, which cannot "
            "run here yet: choose an EAGLE-3 or P-EAGLE draft, or a draft model with its "
            "tokenizer."
        )
    layer = config.get("transformer_layer_config", config)
    family = layer.get("model_type", "llama")
    reads = config.get("eagle_aux_hidden_state_layer_ids") or (
        config.get("eagle_config") or {}
    ).get("eagle_aux_hidden_state_layer_ids")
    return PublishedDraft(
        folder,
        layer,
        family,
        tuple(reads or ()),
        bool(config.get("norm_before_residual")),
        bool(config.get("norm_before_fc")),
        bool(config.get("fc_norm")),
        bool(config.get("norm_output")),
        _block(config) if kind == "peagle" else 1,
        config.get("mask_token_id") or 0,
    )


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
    return next((kind for kind in OTHERS if kind in names), "")
