"""On real engines all columns write one text: on OpenVINO that of KV reuse, with published codes
that of fp32, on torch that of the race in a hundred lines (`tests/naive_race.py`), greedily and
with keyed noise. Thoroughly: with a penalty, all columns that `make verify` runs without one.
"""

import pytest
from naive_race import chooser, kv, lookup, stateless
from race_runs import run_solo

from backend.bench.prompts import PROMPTS, Prompt
from backend.bench.runner import raced as race_board
from backend.bench.verify import PENALIZED, cases, verified_columns, verify
from backend.engines.torch.engine import TorchEngine
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import Column, parse_column
from backend.tokenizer import prompt_tokens
from backend.types import ModelSpec, Request, Sampling

OPENVINO, TORCH = ModelSpec(), ModelSpec(engine="torch")
DRAFTING = ("speculative", "speculative:draft=int4,k=3", "speculative:promise=distribution")
FAMILIES = tuple(map(parse_column, ("kv", "stateless", *DRAFTING, "lookahead", "lookup")))


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    return LoadedModels(idle_warm_up=True)


def raced(
    models: LoadedModels, names: tuple[str, ...], request: Request, target: ModelSpec
) -> list:
    """The columns' tokens."""
    board = race_board(Race(request, tuple(map(parse_column, names)), target), models)
    assert {score.message for score in board.scores} == {""}
    return [score.tokens for score in board.scores]


@pytest.mark.model
@pytest.mark.parametrize(
    ("prompt", "samplings", "tokens", "columns"),
    [
        (PROMPTS[2], (Sampling(),), 11, FAMILIES),
        (PROMPTS[1], PENALIZED[1:], 11, FAMILIES),
        pytest.param(PROMPTS[0], PENALIZED, 48, verified_columns(), marks=pytest.mark.thorough),
    ],
)
def test_every_lossless_column_writes_what_kv_reuse_writes(
    models: LoadedModels,
    prompt: Prompt,
    samplings: tuple[Sampling, ...],
    tokens: int,
    columns: tuple[Column, ...],
) -> None:
    usual = Request("-", tokens, ignore_eos=samplings[-1] in PENALIZED)
    for result in verify(cases(usual, (OPENVINO,), (prompt,), samplings), models, columns):
        assert result.equal, (result.case, result.differences)
        temperature = result.case.request.sampling.temperature
        keeping = [column for column in columns if column.lossless(temperature)]
        assert len(result.differences) == len(keeping)
        assert (len(keeping) == len(columns)) == (temperature == 0)
        assert result.tokens > 10


@pytest.mark.model
def test_the_published_codes_write_the_text_of_fp32(models: LoadedModels) -> None:
    """In the built-in model's codes, at fp32's arithmetic, nothing but a tie can fall otherwise."""
    names = ("kv", "kv@int4-exact", "speculative@int4-exact", "lookahead@int4-exact")
    request = Request(PROMPTS[2].text, 10, Sampling(0.7, seed=1))
    first, *others = raced(models, names, request, OPENVINO)
    assert others == [first] * 3


@pytest.mark.model
def test_the_exact_int4_draft_is_accepted_in_full_at_exact_settings(models: LoadedModels) -> None:
    """The int4 copy stores the fp32 weights' own codes; only its fast arithmetic can disagree."""
    race = Race(Request(PROMPTS[2].text, 40), (parse_column("speculative:draft=int4,k=7"),))
    score = run_solo(race, 0, models)
    assert score.acceptance > 0.85
    assert score.length / score.steps > 2.5


@pytest.mark.model
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3)])
def test_every_column_writes_the_naive_races_tokens(
    models: LoadedModels, sampling: Sampling
) -> None:
    names = ("kv", "lookup", "speculative", "lookahead")
    request = Request("List three colours, and three animals.", 12, sampling)
    written = raced(models, names, request, TORCH)
    engine: TorchEngine = models.get(TORCH, print)
    prompt = prompt_tokens(engine.tokenizer, request)
    choose = chooser(sampling.temperature, sampling.seed)
    text = kv(engine.model, prompt, 12, choose)
    assert lookup(engine.model, prompt, 12, choose) == text
    assert stateless(engine.model, prompt, 4, choose) == text[:4]
    for name, tokens in zip(names, written, strict=True):
        assert tokens == text[: len(tokens)], name
        assert len(tokens) == 12 or tokens[-1] in engine.tokenizer.eos_ids
