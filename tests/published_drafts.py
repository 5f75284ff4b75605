"""Published drafts in tests: how they are written, that they compute what they should, and that an
answer goes on with them.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from races import board_after, events_of
from safetensors.torch import save_file

from backend.engines.heads.published import read_published
from backend.engines.heads.torch_draft import open_published
from backend.engines.torch.engine import TorchEngine
from backend.kvcache.sources import Visitor
from backend.racing.commands import SaveColumn, run_to_end
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import AnswerSoFar, ModelSpec, Request


def assert_like_speculators(folder: Path, target: TorchEngine, reference: dict[str, Any]) -> None:
    """Hold the draft's logits against those that `speculators` computed with its weights."""
    tokens, states = reference["tokens"].tolist(), reference["states"].numpy()
    logits = reference["logits"].numpy()  # [step, place, V']
    network = open_published(read_published(folder), target, print).open()
    held = 0
    for end in (1, 2, 5, 6, 10):  # read in parts, each after guesses that are forgotten
        found = network.read(held, tokens[held:end], states[held:end], wanted=True)
        assert np.abs(found[0] - logits[0, end - 1]).max() < 1e-5
        for step in (1, 2):
            found = network.guess(end + step - 1, tokens[end + step - 1])
            assert np.abs(found[0] - logits[step, end - 1]).max() < 1e-5
        assert network.rewind(end) == end
        held = end
    network.close()


def assert_goes_on(
    request: Request, spec: ModelSpec, draft: str, saved: Path | None, patch: pytest.MonkeyPatch
) -> None:
    """An answer with this draft goes on from its cache, or from a snapshot in the folder `saved`,
    as if it had not ended.
    """
    columns = tuple(parse_column(t) for t in ("kv", f"speculative:draft={draft},auto=off,k=3"))
    models, scope = LoadedModels(), Visitor("ann")
    begun = Race(request, columns, spec, scope=scope)
    first = board_after(columns, events_of(begun, models))
    earlier = tuple(score.answer_so_far for score in first.scores)
    if saved:
        patch.setattr("backend.kvcache.snapshots.cache_dir", lambda: saved)
        boards = [Scoreboard(columns[index : index + 1]) for index in range(2)]
        for index, board in enumerate(boards):
            command = SaveColumn(begun, index, earlier[index])
            run_to_end(command, models, board.add, lambda: False)
        models.prefixes.forget(scope)
        earlier = tuple(AnswerSoFar(snapshot=board.scores[0].snapshot) for board in boards)
    on = Race(request, columns, spec, earlier, scope)
    whole = Race(replace(request, max_new_tokens=2 * request.max_new_tokens), columns[:1], spec)
    plain, drafted = board_after(columns, events_of(on, models)).scores
    (expected,) = board_after(columns[:1], events_of(whole, models)).scores
    assert plain.message == drafted.message == ""
    last = slice(-request.max_new_tokens, None)
    assert drafted.tokens[last] == plain.tokens[last] == expected.tokens[last]
    assert drafted.drafted > 0


def write(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
    """Make a draft's folder of that configuration and those weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in weights.items()}, folder / "w.safetensors")
    return folder
