"""The trained draft on the real engines: what it reads, what runs it, and how often it is right."""

import numpy as np
import pytest
import torch
from races import run_solo

from backend.bench.prompts import PROMPTS
from backend.engines.heads.draft import HIDDEN
from backend.engines.heads.file import SHIPPED, read_head
from backend.engines.heads.network import INPUT, tensor, torch_head
from backend.engines.heads.openvino import open_openvino_head
from backend.models.files import model_files
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, chain_parents

pytestmark = pytest.mark.model

FILE = read_head(SHIPPED)


@pytest.mark.parametrize("engine", ["openvino", "torch"])
def test_features_are_what_the_output_projection_reads(engine: str) -> None:
    """Of every row, whether its logits were asked for or not."""
    loaded = LoadedModels(idle_warm_up=True).get(ModelSpec(engine=engine), print)
    assert loaded.capabilities.hidden_states
    table = tensor(model_files("built-in", print).folder, INPUT).numpy()
    session = loaded.open()
    tokens = loaded.tokenizer.encode("The capital of France is Paris.", chat=True)
    logits = session.forward(tokens, chain_parents(len(tokens)), (2, len(tokens) - 1))
    features = session.hidden_states()
    assert features.shape == (len(tokens), table.shape[1])
    assert np.abs(features[[2, -1]] @ table.T - logits).max() < 1e-3
    session.keep(range(len(tokens)))
    session.forward([5], [-1], ())
    assert session.hidden_states().shape == (1, table.shape[1])
    assert np.abs(features[[2, -1]] @ table.T - logits).max() < 1e-3, "it was a copy"
    session.close()


@pytest.mark.thorough
def test_both_libraries_run_the_same_head() -> None:
    """OpenVINO has the weights once more rounded to int8, embeddings included: what is drafted is
    the same nearly always, and what it is drafted from is close.
    """
    shape = FILE.shape
    ours = torch_head(FILE, ModelSpec(), print).eval()
    theirs = open_openvino_head(FILE, ModelSpec(), print)
    engine = LoadedModels(idle_warm_up=True).get(ModelSpec(), print)
    tokens = engine.tokenizer.encode("Tell me how tides come about, step by step.", chat=True)
    session = engine.open()
    session.forward(tokens, chain_parents(len(tokens)), ())
    features, ids = session.hidden_states(), np.array(tokens, dtype=np.int64)
    session.close()
    cache = np.zeros((shape.layers, shape.kv_heads, shape.slots, shape.head_dim), np.float32)
    agreed: list[bool] = []
    for rows in range(1, len(tokens), 2):
        bias = np.full((rows, shape.slots + rows), HIDDEN)
        bias[:, shape.slots :][np.tri(rows, dtype=bool)] = 0
        positions = np.arange(1, rows + 1)
        inputs = (features[:rows], ids[1 : rows + 1], positions, cache, cache, bias)
        with torch.no_grad():
            expected = ours(*(torch.from_numpy(array) for array in inputs))
        found = theirs.run(*inputs)
        logits, best = expected[0][0].numpy(), int(expected[0].argmax())
        assert np.corrcoef(logits, found.logits[0])[0, 1] > 0.99
        assert np.corrcoef(expected[1][0].numpy(), found.state[0])[0, 1] > 0.99
        assert found.keys.shape == expected[2].shape
        agreed.append(best == int(found.logits.argmax()))
    assert sum(agreed) > 0.85 * len(agreed)


def test_the_shipped_draft_is_small_and_knows_its_target() -> None:
    assert SHIPPED.stat().st_size <= 25e6
    vocab_size = model_files("built-in", print).vocab_size
    assert (np.diff(FILE.tokens) > 0).all()
    assert 0 <= FILE.tokens[0] <= FILE.tokens[-1] < vocab_size


@pytest.mark.parametrize("engine", ["openvino", pytest.param("torch", marks=pytest.mark.thorough)])
def test_the_target_often_agrees_with_it(engine: str) -> None:
    """A floor: a broken cache, a feature off by one or a wrong token map would fall far below."""
    column = parse_column("speculative:draft=trained,k=1")
    engines, taken, drafted = LoadedModels(idle_warm_up=True), 0, 0
    for prompt in PROMPTS[2:3]:
        race = Race(Request(prompt.text, 48), (column,), ModelSpec(engine=engine))
        score = run_solo(race, 0, engines)
        taken, drafted = taken + score.accepted, drafted + score.drafted
    assert taken / drafted > 0.3


def test_the_shipped_head_was_trained_for_the_built_in_model_as_it_is_made_here() -> None:
    """A model made otherwise, in a byte, would be another one to its own draft."""
    assert read_head(SHIPPED).target == model_files("built-in", print).fingerprint
