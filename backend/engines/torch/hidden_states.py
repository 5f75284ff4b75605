"""The hidden states of a transformers model's pass, for drafts that read them."""

from typing import Any
from weakref import WeakKeyDictionary


class HiddenStatesTap:
    """Sees the hidden states that a model hands to its output projection.

    One for a model, however often that is opened; a store takes those of its own pass, so that no
    other store's replace them.
    """

    def __init__(self) -> None:
        self._seen: Any = None

    def note(self, _module: Any, _inputs: Any, output: Any) -> None:
        """A forward hook of the model's decoder."""
        self._seen = output[0]

    def take(self) -> Any:
        """Those of the pass that has just run, a tensor [b, n, D], which is then forgotten here."""
        seen, self._seen = self._seen, None
        return seen


_TAPS: WeakKeyDictionary[Any, HiddenStatesTap] = WeakKeyDictionary()


def tap_of(model: Any) -> HiddenStatesTap:
    """The model's tap, put there if there is none."""
    if model not in _TAPS:
        _TAPS[model] = HiddenStatesTap()
        model.get_decoder().register_forward_hook(_TAPS[model].note)
    return _TAPS[model]
