"""What a column's drafter is built of, and what becomes of it when building fails."""

from dataclasses import replace

import pytest

from backend.decoding.seams import Drafter
from backend.engines.fake import FakeEngine
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies import registry
from backend.strategies.column import parse_column
from backend.strategies.declaration import DrafterInputs
from backend.strategies.ours import SPECULATIVE
from backend.types import ModelSpec, Request


def test_a_build_that_fails_leaves_no_session_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in's `build` that raised left the session of its draft open for as long as the process
    lived.
    """

    def failing(_inputs: DrafterInputs) -> Drafter:
        raise RuntimeError("a slip")

    broken = replace(SPECULATIVE, build=failing)
    monkeypatch.setattr(registry, "_registered", lambda: ({"speculative": broken}, ()))
    models, columns = LoadedModels(), (parse_column("speculative:draft=fake-draft"),)
    board = Scoreboard(columns)
    Race(Request("x", 8), columns, ModelSpec("fake", "fake")).run(models, board.add, lambda: False)
    assert board.scores[0].message
    for name in ("fake", "fake-draft"):
        engine = models.get(ModelSpec(name, "fake"), print)
        assert isinstance(engine, FakeEngine)
        assert engine.open_sessions == 0, name
