"""transformers' generate() as columns: against our own loop, and against itself alone."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from families import byte_tokenizer, make, random_model
from races import board_after, events_of

from backend.events import Event, Finished, Step
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Score
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

#: What is looked up in itself.
PROMPT = "the cat and the dog, the cat and the "

DRAWN = Sampling(temperature=1.0, top_k=40, top_p=0.9, seed=7, min_p=0.01, repetition_penalty=1.1)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft of its vocabulary that often agrees, and one with another vocabulary."""
    root = tmp_path_factory.mktemp("models")
    make("llama", root / "target")
    make("llama", root / "draft", spread=0.14)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|another|>"], special_tokens=True)
    tokenizer.save_pretrained(root / "other")
    other = random_model("llama", vocab_size=258, hidden_size=32, num_hidden_layers=1)
    other.save_pretrained(root / "other")
    return root


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    return LoadedModels()


def request_of(sampling: Sampling = Sampling(), **further: object) -> Request:  # noqa: B008
    return Request(PROMPT, 48, sampling, chat=False, **{"ignore_eos": True, **further})


def raced(folders: Path, models: LoadedModels, request: Request, *columns: str) -> Sequence[Score]:
    """What the columns write in one race; those that name a draft by its folder's name there."""
    target = ModelSpec(str(folders / "target"), "torch")
    parsed = [parse_column(each.replace("draft=", f"draft={folders}/")) for each in columns]
    events = events_of(Race(request, tuple(parsed), target), models)
    scores = board_after(parsed, events).scores
    assert not any(score.message for score in scores), [score.message for score in scores]
    return scores


ALL = ("", ":lookup=5", ":draft=draft,k=3")


@pytest.mark.parametrize(
    "request_",
    [request_of(), request_of(ignore_eos=False), request_of(Sampling(repetition_penalty=1.3))],
    ids=["greedy", "that may end", "with a penalty"],
)
def test_every_column_writes_what_key_value_reuse_writes(
    folders: Path, models: LoadedModels, request_: Request
) -> None:
    columns = [f"transformers{settings}" for settings in ALL]
    plain, *others = raced(folders, models, request_, "kv", *columns)
    assert [score.tokens for score in others] == [plain.tokens] * len(ALL)
    assert len(plain.tokens) == 48 or not request_.ignore_eos
    once, looked, drafted = (score.steps for score in others)
    assert once == len(plain.tokens)
    if request_ == request_of():
        assert looked < once, "what was looked up is accepted"
        assert drafted < once, "what the draft guessed is accepted"


def test_drawn_texts_are_those_that_columns_write_alone(
    folders: Path, models: LoadedModels
) -> None:
    """Columns in turns draw from one generator of torch's."""
    request = request_of(DRAWN)
    columns = ["transformers", "transformers:lookup=5", "transformers:draft=draft"]
    together = [score.tokens for score in raced(folders, models, request, *columns, *columns)]
    alone = [raced(folders, models, request, column)[0].tokens for column in columns]
    assert together == alone + alone
    another = request_of(Sampling(temperature=1.0, seed=8))
    assert raced(folders, models, another, "transformers")[0].tokens != alone[0]


def test_a_stop_string_ends_the_text_in_front_of_itself(
    folders: Path, models: LoadedModels
) -> None:
    (whole,) = raced(folders, models, request_of(), "kv")
    stop = re.findall("[!-~]{2}", whole.text)[-1]
    request = request_of(stop=(stop,))
    plain, *others = raced(
        folders, models, request, "kv", *(f"transformers{settings}" for settings in ALL[:2])
    )
    assert plain.text == whole.text[: whole.text.index(stop)]
    assert [score.text for score in others] == [plain.text] * 2


def test_a_stopped_race_ends_every_generation(folders: Path, models: LoadedModels) -> None:
    events: list[Event] = []
    race = Race(
        Request(PROMPT, 200, chat=False, ignore_eos=True),
        (parse_column("transformers"), parse_column("transformers:lookup=2")),
        ModelSpec(str(folders / "target"), "torch"),
    )
    race.run(models, events.append, lambda: sum(isinstance(e, Step) for e in events) > 5)
    ends = [event.reason for event in events if isinstance(event, Finished)]
    assert ends == ["stopped"] * 2
    assert torch.is_grad_enabled(), "generate() has put back what it switched off"


def test_what_cannot_be_loaded_or_asked_is_said(folders: Path, models: LoadedModels) -> None:
    broken = folders / "broken"
    make("llama", broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    columns = (
        "transformers",
        f"transformers:lookup=2,draft={folders}/draft",
        f"transformers:draft={broken}",
        f"transformers:model={broken}",
        f"transformers:draft={folders}/other",
    )
    target = ModelSpec(str(folders / "target"), "torch")
    parsed = tuple(map(parse_column, columns))
    scores = board_after(parsed, events_of(Race(request_of(), parsed, target), models)).scores
    assert [score.state for score in scores] == ["done", *["failed"] * 4]
    assert "leave one out" in scores[1].message
    assert all("broken" in score.message for score in scores[2:4])
    assert "vocabular" in scores[4].message
