"""A slice of the equality matrix on the real engines; `make verify` runs the whole of it."""

import pytest

from backend.bench.prompts import PROMPTS
from backend.bench.runner import run_solo
from backend.bench.verify import cases, verified_columns, verify
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.results.sentences import verdict
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("target", "prompts", "tokens"),
    [
        (ModelSpec(), PROMPTS[1:3], 48),
        (ModelSpec(precision="int4-exact"), PROMPTS[1:2], 32),
        (ModelSpec(engine="torch"), PROMPTS[1:2], 32),
    ],
)
def test_every_lossless_column_writes_what_kv_reuse_writes(target, prompts, tokens) -> None:
    chosen = cases((target,), prompts, (0.0, 0.9), (7,))
    engines = LoadedModels(idle_warm_up=True)
    for result in verify(chosen, engines, tokens):
        assert result.equal, (result.case, result.verdicts)
        temperature = result.case.temperature
        keeping = [column for column in verified_columns() if column.keeps_text(temperature)]
        assert len(result.verdicts) == len(keeping)
        assert (len(keeping) == len(verified_columns())) == (temperature == 0)
        assert result.tokens > 10


def test_the_published_codes_write_the_text_of_fp32() -> None:
    """In the built-in model's codes, at fp32's arithmetic, nothing but a tie can fall otherwise."""
    lineup = ("kv", "kv@int4-exact", "speculative@int4-exact", "lookup@int4-exact")
    columns = tuple(map(parse_column, (*lineup, "lookahead@int4-exact")))
    board = Scoreboard(columns)
    race = Race(Request(PROMPTS[2].text, 32, Sampling(0.7, seed=1)), columns)
    race.run(LoadedModels(idle_warm_up=True), board.add, lambda: False)
    assert [score.tokens for score in board.scores] == [board.scores[0].tokens] * len(columns)
    assert verdict(board, 1) == "identical to KV reuse (32 tokens)"


def test_the_exact_int4_draft_is_accepted_in_full_at_exact_settings() -> None:
    """The int4 copy stores the fp32 weights' own codes; only its fast arithmetic can disagree."""
    race = Race(Request(PROMPTS[2].text, 64), (parse_column("speculative:draft=int4,k=7"),))
    score = run_solo(race, 0, LoadedModels(idle_warm_up=True))
    assert score.acceptance > 0.85
    assert score.tokens_per_forward > 2.5
