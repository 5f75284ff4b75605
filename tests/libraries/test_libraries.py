"""transformers and openvino-genai as columns: plain, with prompt lookup and with a draft they write
what our own loop writes on the same weights; what they draw depends on the seed alone; they stop,
follow grammars, and refuse in a sentence.
"""

import json
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import chat_model
import pytest
import torch
from eagle3_drafts import SIZES, random_draft
from families import byte_tokenizer, make, random_model
from race_runs import board_after, events_of, streamed

from backend.events import Event, Finished, Step
from backend.grammar.sources import GrammarSource
from backend.racing.hosts import ProcessHost
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Score
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

#: Its text is looked up in itself.
REQUEST = Request("the cat and the dog, the cat and the ", 48, chat=False, ignore_eos=True)

#: The columns of a library: the engine of ours that is like it, and how they draft.
COLUMNS = {
    "transformers": ("torch", ("", ":lookup=5", ":draft=DRAFT,k=3")),
    "openvino_genai": ("openvino", ("", ":lookup=5", ":draft=int8,k=3")),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A target, a draft of its vocabulary that often agrees, and one with another vocabulary; what
    is prepared lies in a cache of their own.
    """
    root = tmp_path_factory.mktemp("models")
    make("llama", root / "target")
    make("llama", root / "draft", spread=0.14)
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["<|another|>"], special_tokens=True)
    tokenizer.save_pretrained(root / "other")
    other = random_model("llama", vocab_size=258, hidden_size=32, num_hidden_layers=1)
    other.save_pretrained(root / "other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DECODE_DERBY_CACHE", str(root / "cache"))
        yield root


@pytest.fixture(scope="module")
def models() -> LoadedModels:
    return LoadedModels()


@pytest.fixture(params=COLUMNS)
def library(request: pytest.FixtureRequest) -> str:
    return request.param


def race_of(
    folders: Path, library: str, request: Request, *columns: str, grammar: str = ""
) -> Race:
    source = GrammarSource("regex", grammar, "own") if grammar else None
    words = [column.replace("DRAFT", str(folders / "draft")) for column in columns]
    parsed = tuple(parse_column(each, source) for each in words)
    return Race(request, parsed, ModelSpec(str(folders / "target"), COLUMNS[library][0]))


def raced(race: Race, models: LoadedModels) -> Sequence[Score]:
    """What the columns write in one race, in which none fails."""
    scores = board_after(race.columns, events_of(race, models)).scores
    assert not any(score.message for score in scores), [score.message for score in scores]
    return scores


@pytest.mark.parametrize(
    "wishes",
    [
        {"num_beams": 4},
        {"use_cache": False, "no_repeat_ngram_size": 2, "suppress_tokens": [*range(97, 110)]},
        {"eos_token_id": None},
    ],
)
def test_what_a_generation_config_asks_for_is_told_and_not_done(
    folders: Path, models: LoadedModels, tmp_path: Path, wishes: dict[str, object]
) -> None:
    """Nor what the draft's asks for; and a model may have no end at all."""
    shutil.copytree(folders / "target", tmp_path, dirs_exist_ok=True)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        stated = json.loads((tmp_path / name).read_text())
        stated |= {"eos_token": None} if "eos_token_id" in wishes else {}
        (tmp_path / name).write_text(json.dumps(stated | (wishes if name[0] != "t" else {})))
    columns = [f"transformers{plan}" for plan in ("", ":lookup=5", f":draft={tmp_path},k=3")]
    race = race_of(folders, "transformers", replace(REQUEST, ignore_eos=False), "kv", *columns)
    plain, *others = raced(replace(race, target=ModelSpec(str(tmp_path), "torch")), models)
    assert [score.tokens for score in others] == [plain.tokens] * 3
    assert len(plain.tokens) == 48
    told = " ".join(others[0].started.notes)
    assert all(name in told for name in wishes if name != "eos_token_id")


PENALTY = Sampling(repetition_penalty=1.3)


@pytest.mark.parametrize("changes", [{}, {"ignore_eos": False}, {"sampling": PENALTY}])
def test_every_column_writes_what_key_value_reuse_writes(
    library: str, folders: Path, models: LoadedModels, changes: dict[str, Any]
) -> None:
    columns, request = [library + plan for plan in COLUMNS[library][1]], replace(REQUEST, **changes)
    plain, *others = raced(race_of(folders, library, request, "kv", *columns), models)
    assert [score.tokens for score in others] == [plain.tokens] * 3
    once, looked, drafted = (score.steps for score in others)
    assert once == len(plain.tokens)
    if not changes:
        assert once == 48
        assert looked < once, "what was looked up is accepted"
        assert drafted < once, "what the draft guessed is accepted"


def test_a_trained_draft_guesses_in_openvino_genai(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its automatic choice of layers asks for a target of ten. A worker races it, up to three
    times: on a busy machine the library may crash, see docs/columns.md.
    """
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    target = chat_model.make(tmp_path / "target", layers=10)
    draft = random_draft(tmp_path / "eagle3", SIZES, (3, 6, 8))
    columns = "kv", "openvino_genai", f"openvino_genai:draft={draft},k=3"
    race = Race(REQUEST, tuple(map(parse_column, columns)), ModelSpec(str(target), "openvino"))
    with closing(ProcessHost()) as host:
        for _ in range(3):
            scores = board_after(race.columns, streamed(host, race)).scores
            if not any("process died" in score.message for score in scores):
                break
    assert [score.message for score in scores] == [""] * 3
    assert len({tuple(score.tokens) for score in scores}) == 1
    *_, drafted = scores
    assert drafted.drafted >= 3 * (drafted.steps - 3)


def test_drawn_texts_depend_on_the_seed_alone(
    library: str, folders: Path, models: LoadedModels
) -> None:
    """Columns of transformers in turns draw from one generator of torch's."""
    drawn = {"temperature": 1.0, "top_k": 40, "top_p": 0.9, "min_p": 0.01}
    request = replace(REQUEST, sampling=Sampling(**drawn, repetition_penalty=1.1, seed=7))
    plans = COLUMNS[library][1] if library == "transformers" else ("",)
    columns = [f"{library}{settings}" for settings in plans]
    race = race_of(folders, library, request, *columns, *columns)
    together = [score.tokens for score in raced(race, models)]
    alone = [
        raced(race_of(folders, library, request, column), models)[0].tokens for column in columns
    ]
    assert together == alone + alone
    another = replace(REQUEST, sampling=Sampling(**drawn, seed=8))
    assert raced(race_of(folders, library, another, library), models)[0].tokens != alone[0]


def test_a_stopped_race_ends_every_generation(
    library: str, folders: Path, models: LoadedModels
) -> None:
    events: list[Event] = []
    columns = (library, f"{library}:lookup=2")
    race = race_of(folders, library, replace(REQUEST, max_new_tokens=200), *columns)
    race.run(models, events.append, lambda: sum(isinstance(e, Step) for e in events) > 3)
    assert [e.reason for e in events if isinstance(e, Finished)] == ["stopped"] * 2
    assert torch.is_grad_enabled(), "generate() has put back what it switched off"
    for thread in threading.enumerate():
        if thread.name == "library":
            thread.join(5)
            assert not thread.is_alive()


def test_what_transformers_cannot_load_or_do_fails_its_own_column(
    folders: Path, models: LoadedModels
) -> None:
    broken = folders / "broken"
    make("llama", broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    settings = ("", ":lookup=2,draft=DRAFT", *(f":{s}={broken}" for s in ("draft", "model")))
    code = ("lookahead,options=draft=/etc", "lookup,lookup=4", "/nowhere", "eagle3")
    more = (f":draft={folders}/other", *(f":generate={each}" for each in code))
    columns = [f"transformers{each}" for each in (*settings, *more)]
    race = race_of(folders, "transformers", REQUEST, *columns)
    scores = board_after(race.columns, events_of(race, models)).scores
    assert [score.state for score in scores] == ["done", *["failed"] * 8]
    assert "leave one out" in scores[1].message
    assert all("broken" in score.message for score in scores[2:4])
    assert "vocabular" in scores[4].message


def test_openvino_genai_follows_a_grammar(folders: Path, models: LoadedModels) -> None:
    columns = [f"openvino_genai{each}" for each in (":grammar=own", ":lookup=4,grammar=own")]
    request = replace(REQUEST, ignore_eos=False)
    race = race_of(folders, "openvino_genai", request, *columns, grammar="[ab]{3}c \n")
    assert all(re.fullmatch("[ab]{3}c ", score.text) for score in raced(race, models))


def test_a_ready_made_model_runs_as_it_is(
    folders: Path, models: LoadedModels, tmp_path: Path
) -> None:
    """As a column's own model, and as the draft of one."""
    (own,) = raced(race_of(folders, "openvino_genai", REQUEST, "openvino_genai"), models)
    graph = (folders / "cache").glob("openvino-genai-fp32-*/openvino_model.*")
    for path in (*graph, *(folders / "target").glob("*.json")):
        shutil.copy(path, tmp_path)
    columns = (f"openvino_genai:{role}={tmp_path}" for role in ("model", "draft"))
    race = race_of(folders, "openvino_genai", REQUEST, *columns)
    ready_made, drafted = raced(race, models)
    assert own.tokens == ready_made.tokens == drafted.tokens
    assert drafted.steps <= 48 / 4
