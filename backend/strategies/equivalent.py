"""What a column amounts to where a library decodes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Equivalent:
    """Prompt lookup of `lookup` tokens, or `k` guessed by `draft`, a model or a precision of the
    target's copy; neither: plain decoding. `note`: why it stands for something else.

    `missing` names what no library has, and `instead` the strategy to use; `vllm` is the
    speculative_config of the one that has it.
    """

    lookup: int = 0
    draft: str = ""
    k: int = 0
    note: str = ""
    missing: str = ""
    instead: str = "Prompt lookup"
    vllm: Mapping[str, Any] = field(default_factory=dict)


#: Of a column that decided not to guess.
NOTHING_DRAFTED = Equivalent(note="No guess paid here: this is plain decoding.")
