"""The program writes what a hundred lines of plain torch write, greedily and with keyed noise."""

from pathlib import Path

import pytest
from naive_race import chooser, kv, lookup, stateless

from backend.engines.torch.engine import TorchEngine
from backend.events import Step
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.text import prompt_tokens
from backend.types import ModelSpec, Request, Sampling

TARGET = ModelSpec(engine="torch")
COLUMNS = ("kv", "lookup", "speculative", "lookahead")


@pytest.mark.model
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=3)])
def test_every_column_writes_the_naive_races_tokens(sampling: Sampling) -> None:
    models = LoadedModels(idle_warm_up=True)
    request = Request("List three colours, and three animals.", 24, sampling)
    written: dict[int, list[int]] = {}

    def emit(event: object) -> None:
        if isinstance(event, Step):
            written.setdefault(event.column, []).extend(event.tokens)

    race = Race(request, tuple(map(parse_column, COLUMNS)), TARGET)
    race.run(models, emit, lambda: False)
    engine: TorchEngine = models.get(TARGET, print)
    prompt = prompt_tokens(engine.tokenizer, request)
    choose = chooser(sampling.temperature, sampling.seed)
    for naive in (kv, lookup):
        text = naive(engine.model, prompt, 24, choose)
        for column, tokens in written.items():
            assert tokens == text[: len(tokens)], COLUMNS[column]
            assert len(tokens) == 24 or tokens[-1] in engine.tokenizer.eos_ids
    assert stateless(engine.model, prompt, 6, choose) == kv(engine.model, prompt, 6, choose)


def test_it_is_a_hundred_lines_and_imports_nothing_of_ours() -> None:
    source = (Path(__file__).parent / "naive_race.py").read_text(encoding="utf-8")
    assert "import backend" not in source
    assert "from backend" not in source
    assert source.count("\n") <= 110
