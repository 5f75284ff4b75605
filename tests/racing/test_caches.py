"""A cache of a file changes no text and no count: what is new is computed."""

from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import families
import pytest
from race_runs import FAKE, board_after, events_of
from safetensors.numpy import load_file, save_file

from backend.racing.caches import _identity
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Score
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

TEXT = "One fox saw two foxes, and one of the two foxes saw one. "


@pytest.fixture(params=["fake", "torch", pytest.param("openvino", marks=pytest.mark.model)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> ModelSpec:
    """A model on each engine."""
    if request.param == "torch":
        return ModelSpec(str(families.make("llama", tmp_path / "llama")), "torch")
    return FAKE if request.param == "fake" else ModelSpec()


def raced(
    models: LoadedModels,
    prompt: str,
    *names: str,
    target: ModelSpec = FAKE,
    save: Path | None = None,
    restore: Path | None = None,
) -> list[Score]:
    columns, request = tuple(map(parse_column, names)), Request(prompt, 4, chat=False)
    race = Race(request, columns, target, save_cache=save, restore_cache=restore)
    return list(board_after(columns, events_of(race, models)).scores)


def test_a_saved_cache_is_restored_exactly(target: ModelSpec, tmp_path: Path) -> None:
    models, file = LoadedModels(), tmp_path / "one.safetensors"
    encode = models.get(target, print).tokenizer.encode
    (saved,) = raced(models, TEXT, "kv", target=target, save=file)
    prompt = f"{TEXT}{saved.text} And then"
    restored, stateless = raced(models, prompt, "kv", "stateless", target=target, restore=file)
    (alone,) = raced(models, prompt, "kv", target=target)
    assert restored.tokens == alone.tokens
    assert stateless.reused == 0
    text = [*encode(TEXT, chat=False), *saved.tokens][:-1]
    pairs = zip(text, encode(prompt, chat=False), strict=False)
    shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    assert restored.reused == shared > len(TEXT) // 5
    assert restored.rows == alone.rows - restored.reused


@pytest.mark.parametrize(
    "changed", [{"model": "another"}, {"precision": "int4"}, {"format": "decode-derby-cache-1"}]
)
def test_another_model_s_cache_is_refused(tmp_path: Path, changed: dict[str, str]) -> None:
    models, file = LoadedModels(), tmp_path / "one.safetensors"
    raced(models, TEXT, "kv", save=file)
    save_file(load_file(file), file, _identity(models.get(FAKE, print)) | changed)
    (score,) = raced(models, TEXT, "kv", restore=file)
    assert "no cache of fake on fake" in score.message


def test_the_first_column_that_keeps_a_cache_is_saved(tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    raced(LoadedModels(), TEXT, "stateless", "kv", "lookup", save=file)
    assert load_file(file)["tokens"].tolist()[: len(TEXT)] == list(TEXT.encode())
    assert list(tmp_path.iterdir()) == [file]
    race = Race(Request(TEXT), (parse_column("stateless"),), FAKE)
    assert race.saved_column is None
    assert replace(race, columns=(*race.columns, parse_column("kv"))).saved_column == 1
