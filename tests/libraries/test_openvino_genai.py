"""openvino-genai's LLMPipeline as columns: against our own loop on the same weights."""

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from families import make
from races import board_after, events_of

from backend.errors import DerbyError
from backend.events import Event, Finished, Step
from backend.grammar.sources import GrammarSource, shipped
from backend.libraries.openvino_genai import generation_arguments
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Score
from backend.strategies.column import default_column, parse_column
from backend.types import ModelSpec, Request, Sampling

PROMPT = "the cat and the dog, the cat and the "

ALL = ("", ":lookup=5", ":draft=int8,k=3")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A tiny model, prepared in a cache of its own."""
    root = tmp_path_factory.mktemp("genai")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECODE_DERBY_CACHE", str(root / "cache"))
        yield make("llama", root / "target")


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    return LoadedModels()


def raced(
    folder: Path, models: LoadedModels, request: Request, *columns: str, own: str = ""
) -> Sequence[Score]:
    grammar = GrammarSource("regex", own, "own") if own else None
    parsed = [parse_column(each, grammar) for each in columns]
    race = Race(request, tuple(parsed), ModelSpec(str(folder)))
    scores = board_after(parsed, events_of(race, models)).scores
    assert not any(score.message for score in scores), [score.message for score in scores]
    return scores


def asked(**further: object) -> Request:
    return Request(PROMPT, **{"max_new_tokens": 48, "chat": False, "ignore_eos": True, **further})


@pytest.mark.parametrize(
    "request_",
    [
        asked(),
        asked(ignore_eos=False, max_new_tokens=200),
        asked(sampling=Sampling(repetition_penalty=1.3)),
    ],
    ids=["greedy", "that may end", "with a penalty"],
)
def test_every_column_writes_what_key_value_reuse_writes(
    folder: Path, models: LoadedModels, request_: Request
) -> None:
    columns = [f"openvino_genai{settings}" for settings in ALL]
    plain, *others = raced(folder, models, request_, "kv", *columns)
    assert [score.tokens for score in others] == [plain.tokens] * len(ALL)
    if request_ == asked():
        once, looked, drafted = (score.steps for score in others)
        assert once == 48
        assert looked < once, "what was looked up is accepted"
        assert drafted < once, "what the draft guessed is accepted"


def test_drawn_texts_depend_on_the_seed_alone(folder: Path, models: LoadedModels) -> None:
    drawn = Sampling(temperature=1.0, top_k=40, top_p=0.9, min_p=0.01, seed=7)
    first, second = raced(folder, models, asked(sampling=drawn), *["openvino_genai"] * 2)
    assert first.tokens == second.tokens
    (other,) = raced(
        folder, models, asked(sampling=Sampling(temperature=1.0, seed=8)), "openvino_genai"
    )
    assert other.tokens != first.tokens


def test_a_stop_string_ends_the_text_in_front_of_itself(folder: Path, models: LoadedModels) -> None:
    (whole,) = raced(folder, models, asked(), "kv")
    (stop, *_) = re.findall("[!-~]{2}", whole.text)
    request = asked(stop=(stop,))
    plain, *others = raced(
        folder, models, request, "kv", *(f"openvino_genai{each}" for each in ALL)
    )
    assert [score.text for score in others] == [plain.text] * len(ALL)
    assert plain.text != whole.text


def test_a_grammar_is_followed(folder: Path, models: LoadedModels) -> None:
    columns = [f"openvino_genai{each}" for each in (":grammar=own", ":lookup=4,grammar=own")]
    request = asked(ignore_eos=False)
    for score in raced(folder, models, request, *columns, own="[ab]{3}c\n"):
        assert len(score.text) == 4
        assert set(score.text[:3]) <= set("ab")
        assert score.text[3] == "c"


@pytest.mark.parametrize("source", shipped().values(), ids=shipped())
def test_a_grammar_of_another_kind_is_refused(source: GrammarSource) -> None:
    settings = {**default_column("openvino_genai").settings(), "grammar": source}
    if source.kind in ("json_schema", "regex"):
        arguments = generation_arguments(asked(), settings)
        assert list(arguments["structured_output_config"]) == [source.kind]
    else:
        with pytest.raises(DerbyError, match="choose another grammar"):
            generation_arguments(asked(), settings)


def test_a_ready_made_model_runs_as_it_is(
    folder: Path, models: LoadedModels, tmp_path: Path
) -> None:
    """As a column's own model, and as the draft of one."""
    (own,) = raced(folder, models, asked(), "openvino_genai")
    graph = (folder.parent / "cache").glob("openvino-genai-fp32-*/openvino_model.*")
    for path in (*graph, *folder.glob("*.json")):
        shutil.copy(path, tmp_path)
    columns = (f"openvino_genai:{role}={tmp_path}" for role in ("model", "draft"))
    ready_made, drafted = raced(folder, models, asked(), *columns)
    assert own.tokens == ready_made.tokens == drafted.tokens
    assert drafted.steps <= 48 / 4


def test_a_stopped_column_stops_generating(folder: Path, models: LoadedModels) -> None:
    events: list[Event] = []
    race = Race(
        asked(max_new_tokens=200),
        (parse_column("openvino_genai"), parse_column("openvino_genai:lookup=2")),
        ModelSpec(str(folder)),
    )
    race.run(models, events.append, lambda: sum(isinstance(e, Step) for e in events) > 3)
    assert [e.reason for e in events if isinstance(e, Finished)] == ["stopped"] * 2
    for thread in threading.enumerate():
        if thread.name == "library":
            thread.join(5)
            assert not thread.is_alive()
