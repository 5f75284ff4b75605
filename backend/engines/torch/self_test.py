"""What a loaded model can do, found by running it: nobody keeps a list of architectures."""

import inspect
from typing import Any

import numpy as np

from backend.engines.base import Engine
from backend.types import chain_parents

#: Layers whose attention goes by masks and positions alone, as configurations call them.
MASKED = {"attention", "full_attention", "sliding_attention"}

#: Tokens of the test's text, and of its beginning.
TOKENS, BEGUN = 8, 4

#: Logits may differ by this share of the largest: rounding of fp32, and of 16 bits, where experts
#: may be chosen otherwise. A wrong mask in fp32 changes them by 1e-2 and more.
ROUNDING = {"float32": 1e-3, "bfloat16": 0.25, "float16": 0.25}


def goes_by_masks(model: Any) -> bool:
    """Whether attention can be told by mask and position what to see, by the model's signature and
    configuration. ALiBi, the local layers of GPT-Neo and the chunks of Llama 4 go by a row's place
    in the cache, which a short text does not show.
    """
    config = model.config.get_text_config(decoder=True)
    named = inspect.signature(model.forward).parameters
    by_place = getattr(config, "alibi", False) or "local" in getattr(config, "attention_layers", ())
    kinds = set(getattr(config, "layer_types", None) or ())
    return {"position_ids", "past_key_values"} <= named.keys() and not by_place and kinds <= MASKED


def computes_alike(engine: Engine, model: Any) -> bool:
    """Whether the engine's passes behind one another give the logits of one pass over all of the
    text; where it takes trees, one of them beside a wrong guess that is then forgotten.
    """
    import torch

    config = model.config.get_text_config(decoder=True)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, TOKENS).tolist()
    rest = tokens[BEGUN:-1]
    chain, count = chain_parents(len(rest)), len(rest)
    try:
        whole, parts = engine.open(), engine.open()
        want = whole.forward(tokens, chain_parents(TOKENS), range(BEGUN, TOKENS))
        parts.forward(tokens[:BEGUN], chain_parents(BEGUN), (0,))
        parts.keep(range(BEGUN))
        if engine.capabilities.one_token:
            kept = range(count)
            got = parts.forward(rest, chain, kept)
        else:
            kept = range(1, count + 1)
            got = parts.forward([0, *rest], [-1, -1, *(1 + each for each in chain[1:])], kept)
        parts.keep(kept)
        got = np.concatenate([got, parts.forward(tokens[-1:], (-1,), (0,))])
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:  # whatever the code of others raises with a cache that is not its own
        return False
    if np.isnan(want).any():  # damaged weights, which whoever runs them says
        return True
    rounding = ROUNDING[str(model.dtype).removeprefix("torch.")]
    return bool(np.abs(got - want).max() <= rounding * np.abs(want).max())
