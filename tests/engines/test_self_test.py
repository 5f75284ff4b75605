"""The self-test sees whatever is wrong with a pass over a tree, in every precision and however
little a model's logits go by it; it runs what will run.
"""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
import torch
from cpu_graph import Recorder

from backend.engines.engine import Engine
from backend.engines.openvino.engine import open_openvino
from backend.engines.openvino.session import OpenVINOSession
from backend.engines.self_test import ROUNDED, self_test
from backend.engines.session import Session, Tree
from backend.engines.torch.captured import Capture, CapturedSession, SlotsLayer, uncaptured
from backend.engines.torch.engine import PRECISIONS, TorchEngine
from backend.engines.torch.session import TorchSession
from backend.tokenizer import ByteTokenizer
from backend.types import Logits, ModelSpec

pytestmark = pytest.mark.usefixtures("one_thread")

Patch = pytest.MonkeyPatch

#: Standard deviations of weights: logits of the lower one hardly go by positions.
SPREADS = (0.02, 0.05, 0.15)


def trees(change: Callable[[Tree], Tree], patch: Patch) -> None:
    """Have passes over trees be over others."""
    right = Session._tree

    def wrong(session: Session, *asked: Sequence[int]) -> Tree:
        tree = right(session, *asked)
        return tree if tree.chain else change(tree)

    patch.setattr(Session, "_tree", wrong)


def all_seen(tree: Tree) -> Tree:
    return tree._replace(seen=np.tril(np.ones_like(tree.seen)))


def seen_by_the_last_row(tree: Tree) -> Tree:
    return tree._replace(seen=np.concatenate([tree.seen[:-1], np.ones_like(tree.seen[-1:])]))


def one_after_another(tree: Tree) -> Tree:
    return tree._replace(depths=np.arange(len(tree.depths)))


def rejected_rows_stay(patch: Patch) -> None:
    def keep(session: OpenVINOSession, rows: Sequence[int]) -> None:
        session._seen[: session._rows] = True

    patch.setattr(OpenVINOSession, "_keep", keep)
    patch.setattr(TorchSession, "_keep", lambda *_: None)


def rows_swapped(patch: Patch) -> None:
    for kind in (OpenVINOSession, TorchSession, CapturedSession):
        right: Any = kind.forward

        def swapped(session: Session, *asked: Sequence[int], right: Any = right) -> Logits:
            logits = right(session, *asked)
            return logits if len(set(asked[1])) == len(asked[1]) else logits[::-1]

        patch.setattr(kind, "forward", swapped)


WRONG: dict[str, Callable[[Patch], None]] = {
    "all see the guesses": partial(trees, all_seen),
    "the last row sees the guesses": partial(trees, seen_by_the_last_row),
    "positions by rows": partial(trees, one_after_another),
    "rejected rows stay": rejected_rows_stay,
    "rows swapped": rows_swapped,
}


def torch_engine(spread: float, precision: str, capture: Capture | None = None) -> TorchEngine:
    model = families.random_model("llama", spread, **families.USUAL)
    model = model.to(getattr(torch, PRECISIONS[precision]))
    spec = ModelSpec(engine="torch", precision=precision)
    return TorchEngine(spec, model, ByteTokenizer(), 64, capture=capture)


def assert_finds(engine: Engine, patch: Patch) -> None:
    assert engine.guesses == "trees"
    for wrong, breaking in WRONG.items():
        with patch.context() as broken:
            breaking(broken)
            assert self_test(engine.open, families.VOCABULARY, ROUNDED) != "trees", wrong


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("capture", [None, uncaptured], ids=["growing", "fixed"])
def test_a_wrong_tree_is_found_on_torch(
    spread: float, precision: str, capture: Capture | None, monkeypatch: Patch
) -> None:
    assert_finds(torch_engine(spread, precision, capture), monkeypatch)


@pytest.mark.parametrize("spread", SPREADS)
def test_a_wrong_tree_is_found_on_openvino(
    spread: float, monkeypatch: Patch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    folder = families.make("llama", tmp_path / "model", spread=spread)
    for precision in ("fp32", "int8", "int4"):
        engine = open_openvino(ModelSpec(str(folder), "openvino", precision), print)
        assert_finds(engine, monkeypatch)


def zeroed(patch: Patch) -> None:
    right = SlotsLayer.update

    def wrong(layer: SlotsLayer, keys: torch.Tensor, values: torch.Tensor, *rest: object) -> object:
        return right(layer, 0 * keys, 0 * values, *rest)

    patch.setattr(SlotsLayer, "update", wrong)


def captures_nothing(patch: Patch) -> None:
    patch.setattr(Recorder, "__call__", lambda _self, run: (run(), lambda: None)[1])


@pytest.mark.parametrize("breaking", [zeroed, captures_nothing])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_captured_passes_that_compute_something_else_are_not_used(
    breaking: Callable[[Patch], None], precision: str, monkeypatch: Patch
) -> None:
    assert isinstance(torch_engine(0.15, precision, Recorder()).open(), CapturedSession)
    breaking(monkeypatch)
    engine = torch_engine(0.15, precision, Recorder())
    assert not isinstance(engine.open(), CapturedSession)
    assert engine.guesses == "trees"
