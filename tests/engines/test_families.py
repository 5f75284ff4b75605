"""Every lossless column writes what KV reuse writes, and KV reuse what generate() writes, whatever
the architecture: each family is a tiny random model. What OpenVINO cannot run is refused, also
where a conversion computes something else; a ready-made OpenVINO folder runs as it is stored.
"""

import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest

from backend.decoding.clock import Clock
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.decoding.seams import Drafter
from backend.drafters.draft_length import DraftLength
from backend.drafters.lookahead import Lookahead, Sizes
from backend.drafters.network_drafter import NetworkDrafter
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.draft import ModelNetwork
from backend.engines.engine import Engine
from backend.engines.openvino import export
from backend.engines.openvino.engine import open_openvino
from backend.engines.openvino.export import converted
from backend.engines.registry import engine_named
from backend.engines.session import Session
from backend.engines.torch.engine import open_torch
from backend.errors import DerbyError
from backend.events import Step
from backend.models.files import model_files
from backend.types import Logits, ModelSpec, Request, Sampling, chain_parents

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


#: Those that always run: plain, a capped context, layers that share, ALiBi, and the hybrids.
QUICK = ("llama", "phi3 longrope", "gemma4", "bloom")
HYBRIDS = ("qwen3_5", "lfm2", "granite hybrid", "nemotron_h")

#: Why: the export, or the graph.
NOT_ON_OPENVINO = {
    "falcon alibi": "missing input 'position_ids'",
    "bloom": "missing input 'position_ids'",
    "gemma2": "capped attention scores",
    "gemma3n": "logits off",
    "gemma4": "The size of tensor",
    "llama4": "'NoneType' object",
    "ministral3": "no exporter",
    "olmo3": "no exporter",
}


class Models:
    """Opens each family's model once; its folder is made at first sight."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.torch, self.openvino = (
            cache(partial(self._open, engine)) for engine in ("torch", "openvino")
        )

    def folder(self, name: str) -> Path:
        folder = self._root / name.replace(" ", "_")
        return folder if folder.exists() else families.make(name, folder)

    def _open(self, engine: str, name: str, precision: str = "fp32") -> Any:
        import torch

        spec = ModelSpec(str(self.folder(name)), engine, precision)
        opened = engine_named(engine).open(spec, print)
        torch.set_num_threads(1)  # two would wait for each other longer than they compute
        return opened


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
    """The answer of one column; what is drawn goes on behind its end."""
    parts = Parts(
        engine.open(),
        engine.tokenizer,
        Sampler(sampling),
        Clock(),
        drafter or Drafter(),
        cache=cache,
        positions=engine.max_context - 8,
    )
    request = Request("x", NEW_TOKENS, sampling, ignore_eos=sampling.temperature > 0)
    events = decode(0, prompt, request, parts)
    return [token for event in events if isinstance(event, Step) for token in event.tokens]


def assert_columns_agree(engine: Engine, prompt: Sequence[int], drafts: Sequence[Engine]) -> None:
    """Every lossless column of the engine writes what KV reuse writes, greedily and sampled."""
    eos, trees = engine.tokenizer.eos_ids, engine.guesses == "trees"
    for sampling in SAMPLINGS:
        drafters: list[Drafter] = [PromptLookup(DraftLength(4), 2)]
        if trees:
            drafters.append(Lookahead(Sizes(5, 3, 5), seeded=True, seed=0))
        drafters += [
            NetworkDrafter(
                ModelNetwork(draft.open(), draft), Sampler(sampling), DraftLength(4), eos
            )
            for draft in drafts
            if draft.guesses != "none"
        ]
        want = write(engine, prompt, sampling)
        if sampling.temperature:
            assert len(set(want)) > 2  # of 24
        assert write(engine, prompt, sampling, cache=False) == want, "stateless"
        for drafter in () if engine.guesses == "none" else drafters:
            assert write(engine, prompt, sampling, drafter) == want, drafter


def marked(names: Iterable[str]) -> list[Any]:
    """All but the quick families run under the mark."""
    quick = (*QUICK, *HYBRIDS)
    return [n if n in quick else pytest.param(n, marks=pytest.mark.thorough) for n in names]


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("name", marked([*families.FAMILIES, *families.RECURRENT]))
def test_on_torch_the_columns_agree_and_equal_generate(
    models: Models, name: str, length: str
) -> None:
    engine = models.torch(name)
    attending = "chains" if name in families.CHAINS else "trees"
    assert engine.guesses == ("none" if name in families.RECURRENT else attending)
    prompt = engine.tokenizer.encode_plain(PROMPTS[length].decode())
    if "longrope" in name and length == "long":
        with pytest.raises(DerbyError, match="64"):
            engine.open().forward(prompt, chain_parents(len(prompt)), ())
        return
    rounded = models.torch(name, "bf16")
    assert rounded.guesses == engine.guesses
    assert_columns_agree(engine, prompt, [engine, rounded])
    assert write(engine, prompt, Sampling()) == generate(models.folder(name), prompt)


@pytest.mark.parametrize("name", marked(families.RECURRENT))
def test_a_text_that_is_cut_is_computed_again(models: Models, name: str) -> None:
    """Rows rejected, texts cut and gone on with: the logits are those of a session of its own."""
    engine, text = models.torch(name), list(range(40, 70))

    def forward(session: Session, start: int, end: int, rows: Sequence[int]) -> Logits:
        return session.forward(text[start:end], chain_parents(end - start), rows)

    def assert_alone(logits: Logits, length: int) -> None:
        alone = forward(engine.open(), 0, length, (length - 1,))[0]
        np.testing.assert_allclose(logits, alone, atol=2e-3)

    session = engine.open()
    forward(session, 0, 20, ())
    session.keep(range(20))
    for logits, length in zip(forward(session, 20, 24, (1, 3)), (22, 24), strict=True):
        assert_alone(logits, length)
    session.keep(range(2))
    assert_alone(forward(session, 22, 23, (0,))[0], 23)
    session.keep((0,))
    session.truncate(22)
    assert session.length == 0, "what is gone is pending again"
    with pytest.raises(RuntimeError, match="takes no tree"):
        session.forward([1, 2], (-1, -1), ())


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
    )
    return text[0, len(prompt) :].tolist()


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name",
    [name for name in families.FAMILIES if name not in NOT_ON_OPENVINO],
)
def test_on_openvino_the_columns_agree_and_equal_torch(models: Models, name: str) -> None:
    for length, text in PROMPTS.items():
        if "longrope" in name and length == "long":
            continue
        engine, torch = models.openvino(name), models.torch(name)
        rounded = [models.openvino(name, precision) for precision in ("int8", "int4")]
        assert {each.guesses for each in (engine, *rounded)} == {"trees"}
        prompt = engine.tokenizer.encode_plain(text.decode())
        assert_columns_agree(engine, prompt, [engine, rounded[0]])
        assert write(engine, prompt, Sampling()) == write(torch, prompt, Sampling())


@pytest.mark.thorough
@pytest.mark.parametrize("name", marked([*NOT_ON_OPENVINO, *families.RECURRENT]))
def test_what_openvino_cannot_run_is_a_sentence(models: Models, name: str) -> None:
    reason = re.escape(NOT_ON_OPENVINO.get(name, ""))
    with pytest.raises(DerbyError, match=f"OpenVINO cannot run .*{reason}"):
        models.openvino(name)


def test_the_table_of_models_names_what_is_run_here() -> None:
    text = (Path(__file__).parents[2] / "docs/columns.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1:4] for line in text.splitlines() if line.startswith("| `")]
    named = {(kind, row[2].strip()) for row in rows for kind in re.findall("`([^`]+)`", row[0])}
    attending = {name: each["model_type"] for name, each in families.FAMILIES.items()}
    converts = {kind for name, kind in attending.items() if name not in NOT_ON_OPENVINO}
    assert {kind for kind, openvino in named if openvino == "yes"} == converts
    recurrent = {each["model_type"] for each in families.RECURRENT.values()}
    assert {kind for kind, _ in named} == {*attending.values(), *recurrent}


@pytest.mark.thorough
def test_a_ready_made_openvino_folder_runs_as_it_is_stored(models: Models, tmp_path: Path) -> None:
    """What optimum exports, as OpenVINO's own Hub pages offer it, was refused as a pickle."""
    source = models.folder("llama")
    graph, _ = converted(model_files(str(source), print), str(source), tmp_path)
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        shutil.copy(source / name, tmp_path)
    shutil.copy(source / "tokenizer_config.json", tmp_path)
    export._save(graph, tmp_path)
    spec = ModelSpec(str(tmp_path), "openvino")
    engine, own = open_openvino(spec, print), models.openvino("llama")
    prompt = engine.tokenizer.encode_plain(PROMPTS["long"].decode())
    assert write(engine, prompt, Sampling()) == write(own, prompt, Sampling())
    with pytest.raises(DerbyError, match=r"'int4'.*fp32"):
        open_openvino(replace(spec, precision="int4"), print)
    with pytest.raises(DerbyError, match="an OpenVINO model"):
        open_torch(replace(spec, engine="torch"), print)


@pytest.mark.thorough
def test_a_conversion_that_computes_anything_else_is_refused(
    models: Models, tmp_path: Path
) -> None:
    """What was converted was kept unseen: Gemma 2 would have lost the cap on its scores."""
    folder = models.folder("mistral window")
    files = model_files(str(folder), print)
    graph, logits = converted(files, str(folder), tmp_path)
    export._save(export._with_interface(graph, files), tmp_path)
    export.require_equal(tmp_path, logits, files)
    with pytest.raises(DerbyError, match="logits off"):
        export.require_equal(tmp_path, logits, replace(files, window=4))
