"""A model without some of its layers, over the same weights: what drafts for it by itself."""

from collections.abc import Sequence
from copy import copy, deepcopy
from typing import Any

from torch import nn

from backend.engines.torch.hidden_states import layers_of
from backend.errors import DerbyError


def without_layers(model: Any, kept: Sequence[int]) -> Any:
    """A model of these layers alone, ascending; shares every parameter and buffer with `model`,
    and nothing else that a pass changes. Raises DerbyError for a model that needs all of its
    layers.
    """
    layers = layers_of(model)
    old = model.config.get_text_config(decoder=True)
    if getattr(old, "num_kv_shared_layers", 0):
        raise _cannot(model, "some of them read the keys and values of others")
    if len({parameter.device for parameter in model.parameters()}) > 1:
        raise _cannot(model, "its weights lie on several devices")
    config = deepcopy(model.config)
    text = config.get_text_config(decoder=True)
    for name, value in vars(old).items():
        if isinstance(value, list) and len(value) == len(layers):
            setattr(text, name, [value[index] for index in kept])
    text.num_hidden_layers = len(kept)
    made: Any = _copied(model, {id(model.config): config, id(old): text})
    own = _twin(model, made, layers)
    chosen = nn.ModuleList(own[index] for index in kept)
    for place, layer in enumerate(chosen):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                vars(module)["layer_idx"] = place  # of its cache
    holder, name = next(
        (part, name)
        for part in made.modules()
        for name, child in part.named_children()
        if child is own
    )
    setattr(holder, name, chosen.eval())
    return made


def _copied(module: nn.Module, configs: dict[int, Any]) -> nn.Module:
    """The same module and parts with the same tensors, without hooks, and with other configs."""
    made = copy(module)
    for name, value in vars(made).items():
        if name == "_modules":
            parts = {key: part and _copied(part, configs) for key, part in value.items()}
            vars(made)[name] = parts
        elif "_hooks" in name:
            vars(made)[name] = type(value)()
        elif id(value) in configs:
            vars(made)[name] = configs[id(value)]
    return made


def _twin(model: nn.Module, made: nn.Module, part: nn.Module) -> Any:
    """What this part of the model is in its copy."""
    name = next(name for name, module in model.named_modules() if module is part)
    return made.get_submodule(name)


def _cannot(model: Any, why: str) -> DerbyError:
    kind = model.config.model_type
    return DerbyError(
        f"No layers of models of type {kind!r} can be left out, because {why}: remove this column."
    )
