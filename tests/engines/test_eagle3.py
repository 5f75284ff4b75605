"""EAGLE-3 drafts as they are published: every library computes what the whole network computes over
the whole text, and columns write what KV reuse writes.

The folder `published` was written by `speculators` 0.9.0 with random weights. The file beside it
holds what that computes with them: at every place of a text, the logits behind it, and behind one
and two tokens more that the draft reads its own states for.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cpu_graph import Recorder
from eagle3_drafts import LAYERS, VOCABULARY, Whole, make_drafts
from families import random_model
from hypothesis import given, settings
from hypothesis import strategies as st
from race_runs import board_after, events_of, run_solo
from safetensors.torch import load_file
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from backend.bench.prompts import PROMPTS
from backend.engines.eagle3.checkpoint import SHIPPED, Checkpoint, read_checkpoint
from backend.engines.eagle3.network import Eagle3
from backend.engines.eagle3.openvino import SETTINGS, OpenVINODraft
from backend.engines.eagle3.ring import Eagle3Network
from backend.engines.eagle3.torch import IDLE, TorchDraft
from backend.engines.torch.captured import uncaptured
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling

pytestmark = pytest.mark.usefixtures("one_thread")

PUBLISHED = Path(__file__).parent / "published"

#: How far drafts of the tests see.
WINDOW = 11


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    return make_drafts(tmp_path_factory.mktemp("eagle3"))


def read(folder: Path, target: Path, window: int = 1024) -> Checkpoint:
    checkpoint = read_checkpoint(folder, ModelSpec(str(target)), print)
    network = checkpoint.network
    shorter = Eagle3(replace(network.shape, window=window), network.embedding)
    shorter.load_state_dict(network.state_dict())
    return replace(checkpoint, network=shorter.eval())


RECORDER = Recorder()

Drafts = dict[str, OpenVINODraft | TorchDraft]


@pytest.fixture(scope="module")
def drafts(folders: tuple[Path, Path, Path]) -> Drafts:
    exactly = SETTINGS | {"DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}  # else activations are rounded
    target, draft, _ = folders
    return {
        "run": TorchDraft(read(draft, target, WINDOW), "cpu", uncaptured),
        "replayed": TorchDraft(read(draft, target, WINDOW), "cpu", RECORDER),
        "openvino": OpenVINODraft(read(draft, target, WINDOW), exactly),
    }


@pytest.fixture(scope="module")
def checkpoint(folders: tuple[Path, Path, Path]) -> Checkpoint:
    return read(folders[2], folders[0], WINDOW)


def assert_same(one: Eagle3Network, whole: Whole, tokens: list[int], length: int) -> None:
    size = (len(tokens), 32 * len(LAYERS))
    states = np.random.default_rng(length).normal(size=size).astype(np.float32)
    computed = one.read(length, tokens, states, wanted=True)
    np.testing.assert_allclose(computed, whole.read(length, tokens, states), atol=2e-3)


TOKENS = st.integers(0, VOCABULARY - 1)


@pytest.mark.parametrize("name", ["run", "replayed", "openvino"])
@settings(max_examples=15, deadline=None)
@given(st.data())
def test_every_ring_computes_what_the_whole_network_does_over_the_whole_text(
    drafts: Drafts, checkpoint: Checkpoint, name: str, data: st.DataObject
) -> None:
    """Chunks of any size, round the ring more than once; guesses give way to the text."""
    one, whole, length = drafts[name].open(), Whole(checkpoint.network), 1
    for _ in range(data.draw(st.integers(1, 8))):
        tokens = data.draw(st.lists(TOKENS, min_size=1, max_size=WINDOW))
        assert_same(one, whole, tokens, length)
        length += len(tokens)
        for i, token in enumerate(data.draw(st.lists(TOKENS, max_size=WINDOW + 3))):
            guessed = one.read(length + i, [token], None, wanted=True)
            np.testing.assert_allclose(guessed, whole.guess(length + i, token), atol=2e-3)
        one.rewind(length)
        whole.rewind(length)
    one.close()


@pytest.mark.parametrize("name", ["replayed", "openvino"])
def test_texts_are_apart_and_graphs_are_used_again(
    drafts: Drafts, checkpoint: Checkpoint, name: str
) -> None:
    draft = drafts[name]
    networks = [draft.open(), draft.open()]
    captured = RECORDER.captured
    for tokens in ([1, 2, 3], [4]):
        assert_same(networks[0], Whole(checkpoint.network), tokens, 1)
        assert_same(networks[1], Whole(checkpoint.network), [9], 1)
        for network in (*networks, *networks):
            network.close()
        networks = [draft.open(), draft.open()]
    assert RECORDER.captured == captured
    for network in (*networks, *(draft.open() for _ in range(IDLE))):
        network.close()
    if isinstance(draft, TorchDraft):
        assert len(draft.idle) <= IDLE


def test_logits_are_those_of_speculators(tmp_path: Path) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 5}
    random_model("llama", **sizes, num_attention_heads=2).save_pretrained(tmp_path)
    reference = load_file(PUBLISHED.with_suffix(".safetensors"))
    tokens, states = reference["tokens"].tolist(), reference["states"].numpy()
    logits = reference["logits"].numpy()  # [step, place, V']
    network = TorchDraft(read(PUBLISHED, tmp_path), "cpu", uncaptured).open()
    start = 0
    for end in (1, 2, 5, 6, 10):  # read in parts, each after guesses that are forgotten
        computed = network.read(start, tokens[start:end], states[start:end], wanted=True)
        assert np.abs(computed[0] - logits[0, end - 1]).max() < 1e-5
        for step in (1, 2):
            computed = network.read(
                end + step - 1, tokens[end + step - 1 : end + step], None, wanted=True
            )
            assert np.abs(computed[0] - logits[step, end - 1]).max() < 1e-5
        network.rewind(end)
        start = end


def test_scaled_positions_turn_as_transformers_has_them(
    folders: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    scaled = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    config = json.loads((folders[1] / "config.json").read_text()) | {"rope_parameters": scaled}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "a.safetensors").symlink_to(folders[1] / "model.safetensors")
    turns = read(tmp_path, folders[0]).network.shape.turns
    expected = LlamaRotaryEmbedding(LlamaConfig(**config)).inv_freq
    np.testing.assert_allclose(turns, expected.numpy(), rtol=1e-6)


def raced(folders: tuple[Path, ...], engine: str, texts: list[str], heat: float) -> Any:
    columns = tuple(map(parse_column, texts))
    request = Request("Say a word.", 40, Sampling(heat, seed=3))
    race = Race(request, columns, ModelSpec(str(folders[0]), engine))
    return board_after(columns, events_of(race, LoadedModels())).scores


@pytest.mark.parametrize(
    ("engine", "heat", "more"),
    [
        ("torch", 0.0, ""),
        ("torch", 0.8, ""),
        ("torch", 0.8, ",grammar=json"),
        ("openvino", 0.8, ""),
    ],
)
def test_columns_write_what_kv_reuse_writes(
    folders: tuple[Path, Path, Path], engine: str, heat: float, more: str
) -> None:
    """In either form they guess the same, too."""
    plain = "kv:grammar=json" if more else "kv"
    texts = [f"speculative:draft={draft},k=4{more}" for draft in folders[1:]]
    kv, authors, speculators = raced(folders, engine, [plain, *texts], heat)
    assert kv.message == authors.message == speculators.message == ""
    assert authors.text == speculators.text == kv.text
    assert 0 < authors.drafted == speculators.drafted
    assert authors.accepted == speculators.accepted


def test_a_draft_is_loaded_once_and_anew_where_it_was_written_anew(
    folders: tuple[Path, Path, Path],
) -> None:
    models = LoadedModels()
    target = models.get(ModelSpec(str(folders[0]), "torch"), print)
    before, again = (models.eagle3(target, folders[1], print) for _ in range(2))
    assert before is again
    (folders[1] / "model.safetensors").touch()
    assert models.eagle3(target, folders[1], print) is not before


# The shipped one ----------------------------------------------------------------------------------


@pytest.mark.model
def test_the_shipped_draft_fits_the_built_in_model_and_is_often_right() -> None:
    """A broken cache, states off by one or a wrong token map would fall far below the floor."""
    models, spec = LoadedModels(idle_warm_up=True), ModelSpec()
    checkpoint = read_checkpoint(SHIPPED, spec, print)
    assert checkpoint.vocabulary is not None
    assert (np.diff(checkpoint.vocabulary) > 0).all()
    race = Race(
        Request(PROMPTS[2].text, 32), (parse_column("speculative:draft=trained,k=1"),), spec
    )
    score = run_solo(race, 0, models)
    assert score.accepted / score.drafted > 0.3
