"""Every lossless column writes what KV reuse writes, and KV reuse what generate() writes, whatever
the architecture; each family is a tiny random model.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from re import findall
from typing import Any

import families
import numpy as np
import pytest

from backend.decoding.clock import Clock
from backend.decoding.drafter import Drafter
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.drafters.draft_length import DraftLength
from backend.drafters.lookahead import Lookahead
from backend.drafters.network_drafter import NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.base import Engine
from backend.engines.draft import ModelNetwork
from backend.engines.openvino import export, refusal
from backend.engines.openvino.compress import int4
from backend.engines.openvino.conversion import converted
from backend.engines.openvino.engine import OpenVINOEngine, open_openvino
from backend.engines.openvino.export import openvino_ir
from backend.engines.torch.engine import TorchEngine, open_torch
from backend.errors import DerbyError
from backend.events import Step
from backend.models.files import model_files
from backend.text import HfTokenizer
from backend.types import ModelSpec, Request, Sampling, chain_parents

pytestmark = [
    # transformers' GPT-BigCode uses it when it is imported.
    pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning"),
    families.OLD_NAMES,
]

#: Short of a threshold and a window that the answer then crosses, and beyond both from the start.
PROMPTS = {
    "short": b"one two three, one two four, one",
    "long": 3 * b"so it goes on and on, and so ",
}
NEW_TOKENS = 24

SAMPLINGS = [Sampling(), Sampling(temperature=0.8, seed=3)]


#: Those that always run: plain, factors by length, layers that share, no trees, a recurrent state.
QUICK = ("llama", "phi3 longrope", "gemma4", "bloom", "qwen3_5")

#: Why: the export, or the graph.
NOT_ON_OPENVINO = {
    "falcon alibi": "its graph has no input 'position_ids'",
    "bloom": "its graph has no input 'position_ids'",
    "mpt": "its graph has no input 'position_ids'",
    "gemma3n": "its logits differ from torch's",
    "gemma4": "optimum-intel says: The size of tensor",
    "granitemoehybrid": "optimum-intel says: its exporter is for another version of transformers",
    "llama4": "optimum-intel says: 'NoneType' object",
    "qwen2_5_vl": "optimum-intel has no exporter for it",
    "qwen3_vl": "optimum-intel has no exporter for it",
}

#: Those of the families with recurrent layers that have an exporter for transformers before 5.5.
EXPORTED_BEFORE = (
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "zamba2",
    "granite hybrid",
)


class Models:
    """Opens each family's model once; its folder is made at first sight."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.torch = cache(self._torch)
        self.openvino = cache(self._openvino)

    def folder(self, name: str) -> Path:
        folder = self._root / name.replace(" ", "_")
        return folder if folder.exists() else families.make(name, folder)

    def _torch(self, name: str, precision: str = "fp32", *, long: bool = False) -> TorchEngine:
        import torch

        spec = ModelSpec(str(self.folder(name)), "torch", precision, long=long)
        engine = open_torch(spec, print)
        torch.set_num_threads(1)  # two would wait for each other longer than they compute
        return engine

    def _openvino(
        self, name: str, precision: str = "fp32", *, long: bool = False
    ) -> OpenVINOEngine:
        spec = ModelSpec(str(self.folder(name)), "openvino", precision, long=long)
        return open_openvino(spec, print)


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
    parts = Parts(
        engine.open(),
        engine.tokenizer,
        Sampler(sampling),
        Clock(),
        drafter or Drafter(),
        cache=cache,
        positions=engine.capabilities.max_context - 8,
    )
    request = Request("x", max_new_tokens=NEW_TOKENS, sampling=sampling)
    events = decode(0, prompt, request, parts)
    return [token for event in events if isinstance(event, Step) for token in event.tokens]


def assert_columns_agree(engine: Engine, prompt: Sequence[int], drafts: Sequence[Engine]) -> None:
    """Every lossless column of the engine writes what KV reuse writes, greedily and sampled."""
    able, eos = engine.capabilities, engine.tokenizer.eos_ids
    for sampling in SAMPLINGS:
        drafters: list[Drafter] = [PromptLookup(DraftLength(4), 2, 2 if able.tree else 1)]
        drafters += [
            NetworkDrafter(
                ModelNetwork(draft.open(), draft), Sampler(sampling), DraftLength(4), eos
            )
            for draft in drafts
        ]
        if able.tree:
            drafters.append(Lookahead(5, 3, 5, seeded=True, seed=0))
        want = write(engine, prompt, sampling)
        if sampling.temperature:
            assert len(set(want)) > 2  # of 24, or fewer where the text ends
        assert write(engine, prompt, sampling, cache=False) == want, "stateless"
        for drafter in drafters:
            assert write(engine, prompt, sampling, drafter) == want, drafter


def marked(names: Iterable[str]) -> list[Any]:
    """All but the quick families run under the mark."""
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.thorough) for n in names]


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("name", marked([*families.FAMILIES, *families.RECURRENT]))
def test_on_torch_the_columns_agree_and_equal_generate(
    models: Models, name: str, length: str
) -> None:
    """phi3's longrope turns all rows of a pass by its last position: speculative, lookup and
    lookahead left KV reuse where a pass reached across the original context. GPT-Neo, GPT-J and
    CodeGen were refused for want of SDPA, Bloom and MPT for not stating their context length, and
    Falcon with ALiBi failed on lookahead. Gemma 3n and 4, whose last layers read what earlier ones
    keep, and Granite's hybrids without a recurrent layer were said to keep state, as were all with
    recurrent layers. Of checkpoints that read images too, Mistral 3's and Qwen's were unknown.
    """
    long = "longrope" in name and length == "long"
    engine = models.torch(name, long=long)
    prompt = engine.tokenizer.encode_plain(PROMPTS[length].decode())
    assert_columns_agree(engine, prompt, [engine, models.torch(name, "bf16", long=long)])
    assert write(engine, prompt, Sampling()) == generate(models.folder(name), prompt)


def generate(folder: Path, prompt: Sequence[int]) -> list[int]:
    """What transformers writes greedily with the model as it loads it itself."""
    import torch
    from transformers import AutoConfig

    ids = torch.tensor([prompt])
    auto = families.auto_class(AutoConfig.from_pretrained(folder))
    model: Any = auto.from_pretrained(folder, dtype=torch.float32)
    text = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=families.END,
        # transformers asks its own cache for a recurrent layer, of which there is none.
        use_cache="granitemoehybrid" not in folder.name,
    )
    return text[0, len(prompt) :].tolist()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [*(name for name in families.FAMILIES if name not in NOT_ON_OPENVINO), *families.CONVERTED],
)
def test_on_openvino_the_columns_agree_and_equal_torch(models: Models, name: str) -> None:
    """A window capped the context; layers that do not slide must not be masked by it either.
    Gemma, GLM and EXAONE 4 were refused for the version of transformers alone, the families behind
    them for having no exporter of their own, LFM2 for a class that transformers no longer has.
    """
    for length, text in PROMPTS.items():
        long = "longrope" in name and length == "long"
        engine, torch = models.openvino(name, long=long), models.torch(name, long=long)
        prompt = engine.tokenizer.encode_plain(text.decode())
        assert_columns_agree(engine, prompt, [engine, models.openvino(name, "int8", long=long)])
        assert write(engine, prompt, Sampling()) == write(torch, prompt, Sampling())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [*NOT_ON_OPENVINO, *(each for each in families.RECURRENT if each not in families.CONVERTED)],
)
def test_what_openvino_cannot_run_is_a_sentence(models: Models, name: str) -> None:
    like = "granitemoehybrid" if name in EXPORTED_BEFORE else "qwen2_5_vl"
    said = NOT_ON_OPENVINO.get(name) or NOT_ON_OPENVINO[like]
    with pytest.raises(DerbyError, match=f"cannot run on OpenVINO here .{said}"):
        models.openvino(name)


def test_the_table_of_models_names_what_is_run_here() -> None:
    text = (Path(__file__).parents[2] / "docs/models.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `")]
    named = {(kind, row[2].strip()) for row in rows for kind in findall("`([^`]+)`", row[0])}
    attending = {name: each["model_type"] for name, each in families.FAMILIES.items()}
    converts = {kind for name, kind in attending.items() if name not in NOT_ON_OPENVINO}
    converts |= {families.RECURRENT[name]["model_type"] for name in families.CONVERTED}
    assert {kind for kind, openvino in named if openvino == "yes"} == converts
    recurrent = {each["model_type"] for each in families.RECURRENT.values()}
    assert {kind for kind, _ in named} == {*attending.values(), *recurrent}


@pytest.mark.thorough
def test_a_ready_made_openvino_folder_runs_as_it_is_stored(models: Models, tmp_path: Path) -> None:
    """What optimum exports, as OpenVINO's own Hub pages offer it, was refused as a pickle."""
    source = models.folder("llama")
    exported, _ = converted(model_files(str(source), print), str(source), tmp_path)
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(source / name, tmp_path)
    shutil.copy(source / "tokenizer_config.json", tmp_path)
    export._save(exported, tmp_path / "openvino_model.xml")
    spec = ModelSpec(str(tmp_path), "openvino")
    engine, own = open_openvino(spec, print), models.openvino("llama")
    prompt = engine.tokenizer.encode_plain(PROMPTS["long"].decode())
    assert write(engine, prompt, Sampling()) == write(own, prompt, Sampling())
    with pytest.raises(DerbyError, match=r"weights are fp32.*choose fp32 instead of 'int4'"):
        open_openvino(replace(spec, precision="int4"), print)
    with pytest.raises(DerbyError, match="OpenVINO model, which torch cannot run"):
        open_torch(replace(spec, engine="torch"), print)


@pytest.mark.thorough
def test_a_conversion_that_computes_anything_else_is_refused(
    models: Models, tmp_path: Path
) -> None:
    """What was converted was kept unseen: Gemma 2 would have lost the cap on its scores."""
    folder = models.folder("mistral window")
    files = model_files(str(folder), print)
    exported, probe = converted(files, str(folder), tmp_path)
    path = tmp_path / export.IR
    export._save(export._with_interface(exported, files), path)
    probe.require_equal(path, files)
    with pytest.raises(DerbyError, match=r"logits differ .*choose the torch engine or another"):
        probe.require_equal(path, replace(files, window=files.window - 1))
    off = probe.logits.copy()
    off[-1, 0] *= 1.01
    with pytest.raises(DerbyError, match="logits differ"):
        replace(probe, logits=off).require_equal(path, files)


@pytest.mark.thorough
def test_a_refused_conversion_is_tried_again_only_with_another_version(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was tried at every race, for seconds and gigabytes."""
    said: list[str] = []
    spec = ModelSpec(str(models.folder("bloom")), "openvino")
    for version in ("1", "1", "2"):
        monkeypatch.setattr(refusal, "version", lambda _, now=version: now)
        with pytest.raises(DerbyError, match=r"no input 'position_ids'.*the torch engine"):
            openvino_ir(spec, said.append)
    assert len(said) == 2
    with pytest.raises(DerbyError, match=r"no input 'position_ids'"):
        openvino_ir(replace(spec, precision="int4"), said.append)
    assert len(said) == 2


def test_int4_takes_any_width_that_some_group_divides() -> None:
    """A mixture's experts, 48 wide beside matrices of 64, were an InvalidGroupSizeError."""
    int4(product(64, 96, experts=48))
    with pytest.raises(DerbyError, match=r"multiple of 32.*48, 72 wide: choose int8"):
        int4(product(48, 72))


def product(*widths: int, experts: int = 0) -> Any:
    """An OpenVINO model of one matrix a width, and 3-D ones for experts."""
    import openvino as ov
    from openvino import opset13 as ops

    random, made = np.random.default_rng(0), []
    inputs = [ops.parameter([1, width], ov.Type.f32) for width in widths]
    for given, width in zip(inputs, widths, strict=True):
        weight = random.normal(size=(64, width)).astype(np.float32)
        made.append(ops.matmul(given, ops.constant(weight), transpose_a=False, transpose_b=True))
    if experts:
        inputs.append(ops.parameter([2, 1, experts], ov.Type.f32))
        weight = random.normal(size=(2, 64, experts)).astype(np.float32)
        made.append(ops.matmul(inputs[-1], ops.constant(weight), False, True))
    build: Any = ov.Model
    return build([ops.result(node) for node in made], inputs, "products")


def test_a_text_longer_than_longropes_original_context_needs_a_context_limit(
    models: Models,
) -> None:
    """Opened for its original context, the model refuses what lies beyond; opened for a longer one
    it is another model, whose caches no text of the first may borrow.
    """
    short, long = models.torch("phi3 longrope"), models.torch("phi3 longrope", long=True)
    assert short.capabilities.max_context == families.ORIGINAL_CONTEXT
    assert long.capabilities.max_context == 256
    assert short.fingerprint != long.fingerprint
    tokens = [1] * (families.ORIGINAL_CONTEXT + 1)
    with pytest.raises(DerbyError, match="reads at most 64"):
        short.open().forward(tokens, chain_parents(len(tokens)), ())


def test_a_tokenizer_without_a_class_is_read_as_it_is_stored(
    tmp_path: Path, models: Models
) -> None:
    """AutoTokenizer took it for the architecture's usual one, which failed at the first text."""
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(models.folder("llama") / name, tmp_path)
    tokenizer = HfTokenizer(tmp_path, frozenset({families.END}), families.VOCABULARY)
    assert tokenizer.encode_plain("a b") == [64, 220, 65]
