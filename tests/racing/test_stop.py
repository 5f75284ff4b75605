"""A column that is stopped shows all that it has written, what it held back included."""

from collections.abc import Sequence

import numpy as np
import pytest
from races import FAKE

from backend.engines.fake import FakeEngine
from backend.events import Event, Finished
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Score, Scoreboard
from backend.strategies.column import parse_column
from backend.types import Logits, Request


def stopped_after(models: LoadedModels, request: Request, name: str, tokens: int) -> Score:
    """The column, stopped once it had written so many tokens."""
    columns = (parse_column(name),)
    board, events = Scoreboard(columns), list[Event]()

    def emit(event: Event) -> None:
        events.append(event)
        board.add(event)

    race = Race(request, columns, FAKE)
    race.run(models, emit, lambda: board.scores[0].length >= tokens)
    assert sum(isinstance(event, Finished) for event in events) == 1
    return board.scores[0]


@pytest.mark.parametrize("name", ["kv", "lookup:k=3", "lookahead"])
def test_text_that_might_become_a_stop_string_is_shown(name: str) -> None:
    models = LoadedModels()
    whole = stopped_after(models, Request("Who?", 40, chat=False), name, 40).text
    request = Request("Who?", 40, chat=False, stop=(f"{whole[3:30]}\N{SNOWMAN}",))
    for tokens in (1, 4, 9, 20):
        found = stopped_after(models, request, name, tokens)
        assert found.reason == "stopped"
        assert found.length >= tokens
        assert found.text == whole[: found.length]


class Accents(FakeEngine):
    """Writes a letter of two bytes again and again."""

    def logits(self, prefix: Sequence[int]) -> Logits:
        values = np.zeros(self.vocab_size, dtype=np.float32)
        values[0xA9 if prefix[-1] == 0xC3 else 0xC3] = 9
        return values


@pytest.mark.parametrize(("tokens", "text"), [(4, "\u00e9\u00e9"), (5, "\u00e9\u00e9\ufffd")])
def test_an_incomplete_character_is_shown_as_one(
    monkeypatch: pytest.MonkeyPatch, tokens: int, text: str
) -> None:
    models = LoadedModels()
    monkeypatch.setattr(models, "get", lambda *_args: Accents())
    found = stopped_after(models, Request("Who?", 40, chat=False), "kv", tokens)
    assert (found.length, found.text) == (tokens, text)


def test_a_program_shows_the_value_that_it_was_in() -> None:
    models = LoadedModels()
    prompt = 'Name: {{gen "name" max_tokens=30 stop="%s"}}.'
    whole = stopped_after(models, Request(prompt % "\N{SNOWMAN}", 40), "kv", 30).values["name"]
    stop = f"{str(whole)[3:20]}\N{SNOWMAN}"
    found = stopped_after(models, Request(prompt % stop, 40), "kv", 9)
    assert found.reason == "stopped"
    assert found.text == f"Name: {str(whole)[: found.length]}"
    assert found.values == {}
