"""A slice of the equality matrix on the real engines; `make verify` runs the whole of it."""

import pytest

from backend.bench.prompts import PROMPTS
from backend.bench.verify import cases, verified_columns, verify
from backend.racing.models import LoadedModels
from backend.types import ModelSpec

pytestmark = pytest.mark.model


@pytest.mark.parametrize(
    ("engine", "prompts", "tokens"), [("openvino", PROMPTS[1:3], 48), ("torch", PROMPTS[1:2], 32)]
)
def test_every_lossless_column_writes_what_kv_reuse_writes(engine, prompts, tokens) -> None:
    chosen = cases((ModelSpec(engine=engine),), prompts, (0.0, 0.9), (7,))
    engines = LoadedModels(idle_warm_up=True)
    for result in verify(chosen, engines, tokens):
        assert result.equal, (result.case, result.verdicts)
        temperature = result.case.temperature
        keeping = [column for column in verified_columns() if column.keeps_text(temperature)]
        assert len(result.verdicts) == len(keeping)
        assert (len(keeping) == len(verified_columns())) == (temperature == 0)
        assert result.tokens > 10


def test_the_exact_int4_draft_is_accepted_in_full_at_exact_settings() -> None:
    """The int4 copy stores the fp32 weights' own codes; only its fast arithmetic can disagree."""
    from backend.bench.runs import run_solo
    from backend.racing.race import Race
    from backend.strategies.column import parse_column
    from backend.types import Request

    race = Race(Request(PROMPTS[2].text, 64), (parse_column("speculative:draft=int4,k=7"),))
    score = run_solo(race, 0, LoadedModels(idle_warm_up=True))
    assert score.acceptance > 0.85
    assert score.tokens_per_forward > 2.5
