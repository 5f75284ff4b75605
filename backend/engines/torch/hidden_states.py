"""The hidden states of a transformers model's last pass, for drafts that read them."""

from typing import Any

from backend.types import HiddenStates


class LastHiddenStates:
    """Sees the hidden states that a model hands to its output projection.

    One for a model and all of its sessions; whoever wants them reads them before the next pass.
    """

    def __init__(self, model: Any) -> None:
        self._seen: Any = None
        model.get_decoder().register_forward_hook(self._note)

    def _note(self, _module: Any, _inputs: Any, output: Any) -> None:
        self._seen = output[0]  # [1, n, D]

    def read(self) -> HiddenStates:
        return self._seen[0].float().cpu().numpy()
