"""Every lossless column writes what KV reuse writes, and KV reuse what generate() writes, whatever
the architecture; each family is a tiny random model.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import families
import pytest

from backend.decoding.clock import Clock
from backend.decoding.context import Bounds
from backend.decoding.drafter import Drafter, NullDrafter
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.drafters.draft_length import FixedDraftLength
from backend.drafters.draft_model import DraftModel
from backend.drafters.lookahead import Lookahead
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.base import Engine
from backend.engines.openvino.engine import OpenVINOEngine, open_openvino
from backend.engines.torch.engine import TorchEngine, open_torch
from backend.errors import DerbyError
from backend.events import Step
from backend.types import ModelSpec, Request, Sampling

#: Short of a threshold and a window that the answer then crosses, and beyond both from the start.
PROMPTS = {
    "short": b"one two three, one two four, one",
    "long": 3 * b"so it goes on and on, and so ",
}
NEW_TOKENS = 24

SAMPLINGS = [Sampling(), Sampling(temperature=0.8, seed=3)]


#: Those that always run.
QUICK = ("llama", "phi3 longrope", "mistral window", "gemma3", "gpt_neo", "falcon alibi", "bloom")

#: Why: the export, or the graph.
NOT_ON_OPENVINO = {
    "falcon alibi": "its graph has no input 'position_ids'",
    "bloom": "its graph has no input 'position_ids'",
    "mpt": "its graph has no input 'position_ids'",
    "gemma": "optimum-intel says: The current version of Transformers",
    "gemma2": "optimum-intel says: The current version of Transformers",
    "gemma3": "optimum-intel says: The current version of Transformers",
}


class Models:
    """Opens each family's model once; its folder is made at first sight."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.torch = cache(self._torch)
        self.openvino = cache(self._openvino)

    def folder(self, name: str) -> Path:
        folder = self._root / name.replace(" ", "_")
        return folder if folder.exists() else families.make(name, folder)

    def _torch(self, name: str, precision: str = "fp32") -> TorchEngine:
        import torch

        engine = open_torch(ModelSpec(str(self.folder(name)), "torch", precision), print)
        torch.set_num_threads(1)  # two would wait for each other longer than they compute
        return engine

    def _openvino(self, name: str, precision: str = "fp32") -> OpenVINOEngine:
        return open_openvino(ModelSpec(str(self.folder(name)), "openvino", precision), print)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECODE_DERBY_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield Models(tmp_path_factory.mktemp("families"))


def write(
    engine: Engine,
    prompt: Sequence[int],
    sampling: Sampling,
    drafter: Drafter | None = None,
    *,
    cache: bool = True,
) -> list[int]:
    """The answer of one column."""
    able = engine.capabilities
    bounds = Bounds(able.max_context, 8, thresholds=able.length_thresholds)
    parts = Parts(
        engine.open(),
        engine.tokenizer,
        Sampler(sampling),
        Clock(),
        drafter or NullDrafter(),
        cache=cache,
        bounds=bounds,
    )
    request = Request("x", max_new_tokens=NEW_TOKENS, sampling=sampling)
    events = decode(0, prompt, request, parts)
    return [token for event in events if isinstance(event, Step) for token in event.tokens]


def assert_columns_agree(engine: Engine, prompt: Sequence[int], drafts: Sequence[Engine]) -> None:
    """Every lossless column of the engine writes what KV reuse writes, greedily and sampled."""
    able, eos = engine.capabilities, engine.tokenizer.eos_ids
    for sampling in SAMPLINGS:
        drafters: list[Drafter] = [PromptLookup(FixedDraftLength(4), 2, 2 if able.tree else 1)]
        drafters += [
            DraftModel(draft.open(), Sampler(sampling), FixedDraftLength(4), eos)
            for draft in drafts
        ]
        if able.tree:
            drafters.append(Lookahead(5, 3, 5, seeded=True, seed=0))
        want = write(engine, prompt, sampling)
        if sampling.temperature:
            assert len(set(want)) > 4
        assert write(engine, prompt, sampling, cache=False) == want, "stateless"
        for drafter in drafters:
            assert write(engine, prompt, sampling, drafter) == want, drafter


def marked(names: Iterable[str]) -> list[Any]:
    """All but the quick families run under the mark."""
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.model) for n in names]


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("name", marked(families.FAMILIES))
def test_on_torch_the_columns_agree_and_equal_generate(
    models: Models, name: str, length: str
) -> None:
    """phi3's longrope turns all rows of a pass by its last position: speculative, lookup and
    lookahead left KV reuse where a pass reached across the original context. GPT-Neo, GPT-J and
    CodeGen were refused for want of SDPA, Bloom and MPT for not stating their context length, and
    Falcon with ALiBi failed on lookahead.
    """
    engine = models.torch(name)
    prompt = engine.tokenizer.encode_plain(PROMPTS[length].decode())
    assert_columns_agree(engine, prompt, [engine, models.torch(name, "bf16")])
    assert write(engine, prompt, Sampling()) == generate(engine, prompt)


def generate(engine: TorchEngine, prompt: Sequence[int]) -> list[int]:
    """What transformers writes greedily."""
    import torch

    ids = torch.tensor([prompt])
    # Where longrope changes its factors, transformers 5.5.4 drops the cache and then computes the
    # last token alone; without a cache it computes the text.
    cached = not engine.capabilities.length_thresholds
    text = engine._model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        use_cache=cached,
        pad_token_id=families.END,
    )
    return text[0, len(prompt) :].tolist()


@pytest.mark.model
@pytest.mark.parametrize("name", [n for n in families.FAMILIES if n not in NOT_ON_OPENVINO])
def test_on_openvino_the_columns_agree_and_equal_torch(models: Models, name: str) -> None:
    """A window capped the context; layers that do not slide must not be masked by it either."""
    engine = models.openvino(name)
    drafts = [engine, models.openvino(name, "int8")]
    for text in PROMPTS.values():
        prompt = engine.tokenizer.encode_plain(text.decode())
        assert_columns_agree(engine, prompt, drafts)
        assert write(engine, prompt, Sampling()) == write(models.torch(name), prompt, Sampling())


@pytest.mark.model
@pytest.mark.parametrize("name", NOT_ON_OPENVINO)
def test_what_openvino_cannot_run_is_a_sentence(models: Models, name: str) -> None:
    with pytest.raises(DerbyError, match=f"cannot run on OpenVINO here .{NOT_ON_OPENVINO[name]}"):
        models.openvino(name)
