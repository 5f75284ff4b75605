"""The hidden states of a transformers model's pass, for drafts that read them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from backend.engines.base import no_trained_draft


class HiddenStatesTap:
    """Sees the hidden states that a model hands to its output projection.

    One for a model, however often that is opened; a store takes those of its own pass, so that no
    other store's replace them.
    """

    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}

    def note(self, _module: Any, _inputs: Any, output: Any) -> None:
        """A forward hook of the model's decoder."""
        self._seen[-1] = output[0]

    @contextmanager
    def reading(self, layers: Mapping[int, Any]) -> Iterator[None]:
        """In the pass within, see what these modules are given, too. Hooks that stayed would run in
        every pass of every column of the model.
        """

        def hook(index: int) -> Any:
            def note(_module: Any, inputs: Any, named: Any) -> None:
                self._seen[index] = inputs[0] if inputs else named["hidden_states"]

            return note

        hooks = [
            layer.register_forward_pre_hook(hook(index), with_kwargs=True)
            for index, layer in layers.items()
        ]
        try:
            yield
        finally:
            for each in hooks:
                each.remove()

    def take(self) -> dict[int, Any]:
        """Those of the pass that has just run by layer, tensors [1, n, D], which are then forgotten
        here.
        """
        seen, self._seen = self._seen, {}
        return seen


def layers_of(model: Any) -> Any:
    """The model's decoder layers, in their order. Raises DerbyError if it has none that we know."""
    from torch.nn import ModuleList

    count = model.config.get_text_config(decoder=True).num_hidden_layers
    for part in model.get_decoder().children():
        if isinstance(part, ModuleList) and len(part) == count:
            return part
    raise no_trained_draft(model.config.model_type)


_TAPS: WeakKeyDictionary[Any, HiddenStatesTap] = WeakKeyDictionary()


def tap_of(model: Any) -> HiddenStatesTap:
    """The model's tap, put there if there is none."""
    if model not in _TAPS:
        _TAPS[model] = HiddenStatesTap()
        model.get_decoder().register_forward_hook(_TAPS[model].note)
    return _TAPS[model]
