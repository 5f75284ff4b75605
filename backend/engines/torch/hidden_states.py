"""The hidden states of a transformers model's pass, for drafts that read them."""

from typing import Any


class HiddenStatesTap:
    """Sees the hidden states that a model hands to its output projection.

    One for a model; a session takes those of its own pass, so that no other session's replace them.
    """

    def __init__(self, model: Any) -> None:
        self._seen: Any = None
        model.get_decoder().register_forward_hook(self._note)

    def _note(self, _module: Any, _inputs: Any, output: Any) -> None:
        self._seen = output[0]

    def take(self) -> Any:
        """Those of the pass that has just run, a tensor [1, n, D], which is then forgotten here."""
        seen, self._seen = self._seen, None
        return seen
