"""Equality on the real engines: each family of strategies; thoroughly, all that `verify` runs."""

import pytest
from races import run_solo

from backend.bench.prompts import PROMPTS, Prompt
from backend.bench.verify import PENALIZED, cases, verified_columns, verify
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import verdict
from backend.strategies.column import Column, parse_column
from backend.types import ModelSpec, Request, Sampling

pytestmark = pytest.mark.model

OPENVINO, CODES, TORCH = ModelSpec(), ModelSpec(precision="int4-exact"), ModelSpec(engine="torch")
DRAFTING = ("speculative", "speculative:draft=int4,k=3", "speculative:promise=distribution")
FAMILIES = tuple(map(parse_column, ("kv", "stateless", *DRAFTING, "lookahead", "lookup")))
ALL = verified_columns()
COLD, WARM = Sampling(), Sampling(0.9)


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    return LoadedModels(idle_warm_up=True)


@pytest.mark.parametrize(
    ("target", "prompts", "samplings", "tokens", "columns"),
    [
        (OPENVINO, PROMPTS[1:2], (WARM,), 16, FAMILIES),
        (OPENVINO, PROMPTS[2:3], (COLD,), 16, FAMILIES),
        (OPENVINO, PROMPTS[1:2], PENALIZED[1:], 16, FAMILIES),
        (TORCH, PROMPTS[1:2], (WARM,), 14, FAMILIES),
        pytest.param(OPENVINO, PROMPTS[:1], PENALIZED, 48, ALL, marks=pytest.mark.thorough),
        pytest.param(OPENVINO, PROMPTS[1:3], (COLD, WARM), 48, ALL, marks=pytest.mark.thorough),
        pytest.param(CODES, PROMPTS[1:2], (COLD, WARM), 32, ALL, marks=pytest.mark.thorough),
        pytest.param(TORCH, PROMPTS[1:2], (COLD, WARM), 32, ALL, marks=pytest.mark.thorough),
    ],
)
def test_every_lossless_column_writes_what_kv_reuse_writes(
    models: LoadedModels,
    target: ModelSpec,
    prompts: tuple[Prompt, ...],
    samplings: tuple[Sampling, ...],
    tokens: int,
    columns: tuple[Column, ...],
) -> None:
    chosen = cases((target,), prompts, samplings, ignore_eos=samplings[-1] in PENALIZED)
    for result in verify(chosen, models, tokens, columns):
        assert result.equal, (result.case, result.verdicts)
        temperature = result.case.sampling.temperature
        keeping = [column for column in columns if column.keeps_text(temperature)]
        assert len(result.verdicts) == len(keeping)
        assert (len(keeping) == len(columns)) == (temperature == 0)
        assert result.tokens > 10


def test_the_published_codes_write_the_text_of_fp32(models: LoadedModels) -> None:
    """In the built-in model's codes, at fp32's arithmetic, nothing but a tie can fall otherwise."""
    lineup = ("kv", "kv@int4-exact", "speculative@int4-exact", "lookahead@int4-exact")
    columns = tuple(map(parse_column, lineup))
    board = Scoreboard(columns)
    race = Race(Request(PROMPTS[2].text, 16, Sampling(0.7, seed=1)), columns)
    race.run(models, board.add, lambda: False)
    assert [score.tokens for score in board.scores] == [board.scores[0].tokens] * len(columns)
    assert verdict(board, result_of(board).rows[1]) == "identical to KV reuse (16 tokens)"


def test_the_exact_int4_draft_is_accepted_in_full_at_exact_settings(models: LoadedModels) -> None:
    """The int4 copy stores the fp32 weights' own codes; only its fast arithmetic can disagree."""
    race = Race(Request(PROMPTS[2].text, 40), (parse_column("speculative:draft=int4,k=7"),))
    score = run_solo(race, 0, models)
    assert score.acceptance > 0.85
    assert score.tokens_per_forward > 2.5
