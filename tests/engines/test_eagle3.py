"""EAGLE-3 drafts and others like them, as they are published: their logits, whose states they read,
and what is refused.

The folders in `eagle3/` were written by `speculators` 0.9.0 with random weights. The file beside
each holds what it computes with them: at every place of a text, the logits behind it, and behind
one and two tokens more that the draft reads its own states for.
"""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_model import VOCABULARY, make
from families import byte_tokenizer, random_model
from published_drafts import assert_goes_on, assert_like_speculators, write
from races import board_after, events_of
from safetensors.torch import load_file

from backend.engines.heads.dflash import DFlash
from backend.engines.heads.published import PublishedDraft, is_published, read_published
from backend.engines.heads.torch_draft import TorchDraftNetwork, open_published
from backend.engines.torch.engine import TorchEngine
from backend.errors import DerbyError
from backend.kvcache.sources import Visitor
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling, chain_parents

PUBLISHED = Path(__file__).parent / "eagle3"
NAMES = ("llama", "llama-fc-norm", "qwen3")

#: What there are folders of for whole races, behind the model.
KINDS = ["EAGLE-3", "P-EAGLE", "DFlash", "Medusa"]


@pytest.fixture(scope="module")
def target() -> TorchEngine:
    """One of the size that the published drafts were made for."""
    model = random_model(
        "llama",
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=5,
        num_attention_heads=2,
    )
    return TorchEngine(ModelSpec("tiny", "torch"), model, byte_tokenizer(), 512)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_speculators(target: TorchEngine, name: str) -> None:
    assert_like_speculators(PUBLISHED / name, target, load_file(PUBLISHED / f"{name}.safetensors"))


@pytest.mark.parametrize("name", ["peagle", "dflash", "dflash of its authors"])
def test_a_parallel_draft_predicts_a_block_as_speculators_does(
    target: TorchEngine, name: str, tmp_path: Path
) -> None:
    """The reference has nothing of places behind its text. Of DFlash it has the target's part, and
    the second layer has a window; its authors count layers from behind the first one.
    """
    kind = name.partition(" ")[0]
    folder, reference = PUBLISHED / kind, load_file(PUBLISHED / f"{kind}.safetensors")
    if "embedding" in reference:
        with torch.no_grad():
            target.model.get_input_embeddings().weight.copy_(reference["embedding"])
            target.model.get_output_embeddings().weight.copy_(reference["output"])
    if name != kind:
        config = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
        own = {"target_layer_ids": [0, 2], "mask_token_id": 7, "block_size": 4}
        stated = {"architectures": ["DFlashDraftModel"], "dflash_config": own}
        weights = load_file(folder / "model.safetensors")
        folder = write(tmp_path / "draft", config | stated, weights)
    tokens, states = reference["tokens"].tolist(), reference["states"].numpy()
    logits = reference["logits"].numpy()  # [depth, place, V']
    network = open_published(read_published(folder), target, print).open()
    held = 0
    for end in (1, 2, 5, 6, 9):
        found = network.read(held, tokens[held:end], states[held:end], wanted=True)
        assert found.shape == logits[:, end - 1].shape
        assert np.abs(found - logits[:, end - 1]).max() < 1e-5
        network.guess(end, tokens[end])
        assert network.rewind(end) == end
        held = end
    network.close()


def test_a_draft_in_its_authors_format_is_the_same(target: TorchEngine, tmp_path: Path) -> None:
    """They call the layer otherwise, state the sizes at the top, and leave out the embeddings."""
    folder = tmp_path / "draft"
    weights = load_file(PUBLISHED / "llama" / "model.safetensors")
    config = json.loads((PUBLISHED / "llama" / "config.json").read_text())
    renamed = {name.replace("layers.0.", "midlayer."): each for name, each in weights.items()}
    embedding = renamed.pop("embed_tokens.weight")
    write(
        folder,
        config["transformer_layer_config"]
        | {
            "architectures": ["LlamaForCausalLMEagle3"],
            "draft_vocab_size": config["draft_vocab_size"],
            "norm_before_residual": True,
        },
        renamed,
    )
    with torch.no_grad():
        target.model.get_input_embeddings().weight.copy_(embedding)
    assert_like_speculators(folder, target, load_file(PUBLISHED / "llama.safetensors"))


def test_states_are_those_in_front_of_the_layers(target: TorchEngine) -> None:
    target.show((1, 3))
    session, tokens = target.open(), [5, 9, 33, 2, 7]
    session.forward(tokens[:3], chain_parents(3), ())
    session.keep(range(3))
    session.forward(tokens[3:], chain_parents(2), ())
    with torch.inference_mode():
        every = target.model(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    expected = torch.cat([every[1][0], every[3][0]], -1)[3:].numpy()
    assert np.abs(session.hidden_states((1, 3)) - expected).max() < 1e-5
    session.close()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """A model, a draft for it in the format of the method's authors, and three parallel ones."""
    root = tmp_path_factory.mktemp("eagle")
    model, size, kept = make(root / "model"), 32, 200
    table = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    ids = torch.arange(VOCABULARY)[-kept:]
    torch.manual_seed(1)
    weights = {
        "fc.weight": 0.1 * torch.randn(size, 3 * size),
        "norm.weight": torch.ones(size),
        "lm_head.weight": table[ids],
        "d2t": ids - torch.arange(kept),
        "midlayer.input_layernorm.weight": torch.ones(size),
        "midlayer.hidden_norm.weight": torch.ones(size),
        "midlayer.post_attention_layernorm.weight": torch.ones(size),
        "midlayer.self_attn.o_proj.weight": 0.05 * torch.randn(size, size),
        "midlayer.mlp.gate_proj.weight": 0.1 * torch.randn(48, size),
        "midlayer.mlp.up_proj.weight": 0.1 * torch.randn(48, size),
        "midlayer.mlp.down_proj.weight": 0.1 * torch.randn(size, 48),
        **{
            f"midlayer.self_attn.{part}_proj.weight": 0.1 * torch.randn(rows, 2 * size)
            for part, rows in (("q", 32), ("k", 16), ("v", 16))
        },
    }
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "draft_vocab_size": kept,
        "hidden_size": size,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    }
    parallel = {
        "speculators_model_type": "peagle",
        "transformer_layer_config": config,
        "draft_vocab_size": kept,
        "eagle_aux_hidden_state_layer_ids": [0, 1, 2],
        "mask_token_id": 7,
        "speculators_config": {"proposal_methods": [{"speculative_tokens": 3}]},
    }
    masked = weights | {"mask_hidden": torch.randn(1, 1, 3 * size)}
    return (
        model,
        write(root / "draft", config, weights),
        write(root / "parallel", parallel, masked),
        write(root / "dflash", *dflash(config)),
        write(root / "medusa", *medusa(table)),
    )


def dflash(layer: dict[str, Any]) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The configuration and weights of a DFlash draft with such a layer."""
    stated = {"architectures": ["DFlashDraftModel"], "head_dim": 8}
    own = {"target_layer_ids": [0, 1], "mask_token_id": 7, "block_size": 4}
    config = layer | stated | {"model_type": "qwen3", "dflash_config": own}
    return config, DFlash(PublishedDraft(Path(), "dflash", config, (1, 2))).state_dict()


def medusa(table: torch.Tensor) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The same of a Medusa draft for a model of these embeddings, [V, D]."""
    size = table.shape[1]
    blocks = {f"{i}.0.linear.weight": 0.1 * torch.randn(size, size) for i in range(3)}
    biases = {f"{i}.0.linear.bias": torch.zeros(size) for i in range(3)}
    projections = {f"{i}.1.weight": table.clone() for i in range(3)}
    return {"medusa_num_heads": 2, "medusa_num_layers": 1}, blocks | biases | projections


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("more", ["", ",grammar=json"])
@pytest.mark.parametrize("kind", range(1, 5), ids=KINDS)
@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_columns_write_what_kv_reuse_writes(
    folders: tuple[Path, ...], temperature: float, more: str, kind: int, engine: str
) -> None:
    model, draft = folders[0], folders[kind]
    texts = ["kv:grammar=json" if more else "kv", f"speculative:draft={draft},auto=off,k=4{more}"]
    columns = tuple(parse_column(text) for text in texts)
    request = Request("Say a word.", 40, Sampling(temperature, seed=3))
    race = Race(request, columns, ModelSpec(str(model), engine))
    models = LoadedModels()
    plain, drafted = board_after(columns, events_of(race, models)).scores
    assert plain.message == drafted.message == ""
    assert drafted.text == plain.text
    assert drafted.drafted > 0


@pytest.mark.parametrize("kind", range(1, 5), ids=KINDS)
def test_a_draft_guesses_the_same_for_openvino_as_for_torch(
    folders: tuple[Path, ...], kind: int
) -> None:
    """It reads the hidden states of the same layers there."""
    column = parse_column(f"speculative:draft={folders[kind]},auto=off,k=4")
    found = []
    for engine in ("torch", "openvino"):
        race = Race(Request("Say a word.", 40), (column,), ModelSpec(str(folders[0]), engine))
        (score,) = board_after((column,), events_of(race, LoadedModels())).scores
        assert not score.message
        found.append((score.tokens, score.drafted, score.accepted))
    assert found[0] == found[1]


def test_openvino_shows_the_states_in_front_of_every_layer(folders: tuple[Path, ...]) -> None:
    spec, tokens = ModelSpec(str(folders[0]), "openvino"), [5, 9, 33, 2, 7]
    ours, theirs = (
        LoadedModels().get(replace(spec, engine=e), print) for e in ("openvino", "torch")
    )
    layers = tuple(range(theirs.depth))
    shown = []
    for engine in (ours, theirs):
        engine.show(layers)
        session = engine.open()
        session.forward(tokens[:3], chain_parents(3), ())
        session.keep(range(3))
        session.forward(tokens[3:], chain_parents(2), (0, 1))
        shown.append(session.hidden_states((*layers, -1)))
        session.close()
    assert shown[0].shape == shown[1].shape
    assert np.abs(shown[0] - shown[1]).max() < 1e-4


@pytest.mark.parametrize("saved", [False, True], ids=["cache", "snapshot"])
@pytest.mark.parametrize("kind", range(1, 5), ids=KINDS)
@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_an_answer_goes_on_as_if_it_had_not_ended(
    folders: tuple[Path, ...],
    engine: str,
    kind: int,
    saved: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was in the cache has hidden states that nobody knows any more: the draft reads on
    behind it.
    """
    request = Request("Say a word.", 16, Sampling(0.8, seed=2))
    spec, draft = ModelSpec(str(folders[0]), engine), str(folders[kind])
    assert_goes_on(request, spec, draft, tmp_path if saved else None, monkeypatch)


@pytest.mark.parametrize("engine", ["torch", "openvino"])
def test_a_cache_from_before_the_draft_was_there_serves_it(
    folders: tuple[Path, ...], engine: str
) -> None:
    """On OpenVINO, caches that were made before cannot show what the draft reads."""
    models, scope = LoadedModels(), Visitor("ann")
    request, spec = Request("Say a word. " * 12, 24), ModelSpec(str(folders[0]), engine)
    texts = []
    drafting = f"speculative:draft={folders[1]},auto=off,k=3,cache=session"
    for names in (["kv:cache=session"], ["kv:cache=session", drafting]):
        columns = tuple(map(parse_column, names))
        race = Race(request, columns, spec, scope=scope)
        board = board_after(columns, events_of(race, models))
        assert [score.message for score in board.scores] == [""] * len(columns)
        texts += [score.tokens for score in board.scores]
    assert texts == [texts[0]] * 3
    assert board.scores[-1].drafted > 0
    assert board.scores[-1].reused == board.scores[-1].prompt_tokens - 1


def test_every_row_is_read_with_the_states_of_the_token_before_it(
    folders: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was rejected on the way."""
    seen: dict[int, tuple[int, Any]] = {}
    read = TorchDraftNetwork.read

    def noted(
        self: TorchDraftNetwork, position: int, tokens: Any, states: Any, *, wanted: bool
    ) -> Any:
        rows = zip(tokens, states, strict=True)
        seen.update({position + i: row for i, row in enumerate(rows)})
        return read(self, position, tokens, states, wanted=wanted)

    model, draft, *_ = folders
    columns = (parse_column(f"speculative:draft={draft},auto=off,k=4"),)
    models, spec = LoadedModels(), ModelSpec(str(model), "torch")
    race = Race(Request("Say a word.", 24, Sampling(0.8, seed=1)), columns, spec)
    models.get(spec, print)
    monkeypatch.setattr(TorchDraftNetwork, "read", noted)
    (score,) = board_after(columns, events_of(race, models)).scores
    assert score.drafted > score.accepted
    last = max(seen)
    assert last >= score.prompt_tokens + 20
    tokens = [seen[position][0] for position in range(1, last + 1)]
    start = models.get(spec, print).tokenizer.encode("Say a word.", chat=True)[:1]
    engine: Any = models.get(spec, print)
    with torch.inference_mode():
        text = torch.tensor([[*start, *tokens]])
        every = engine.model(text, output_hidden_states=True).hidden_states
    expected = torch.cat([every[i][0] for i in (0, 1, 2)], -1).numpy()
    for position in range(1, last + 1):
        assert np.abs(seen[position][1] - expected[position - 1]).max() < 1e-3


@pytest.mark.parametrize("kind", range(2, 5), ids=KINDS[1:])
def test_nothing_is_guessed_behind_a_block(folders: tuple[Path, ...], kind: int) -> None:
    """The next tokens were predicted from the places of the first ones: rows for nothing."""
    model, draft = folders[0], folders[kind]
    columns = (parse_column(f"speculative:draft={draft},auto=off,k=8"),)
    race = Race(Request("Say a word.", 24), columns, ModelSpec(str(model), "torch"))
    (score,) = board_after(columns, events_of(race)).scores
    assert not score.message
    assert max(drafted for drafted, _ in score.depths) == 3


def test_a_draft_goes_with_its_target_and_is_read_anew_once_it_was_written(
    folders: tuple[Path, ...],
) -> None:
    """It stayed with the weights of a target that had given way to others; loaded again, that did
    not show the layers which the draft reads, and every race of it failed.
    """
    model, draft, *_ = folders
    columns = (parse_column(f"speculative:draft={draft},auto=off,k=4"),)
    models, spec = LoadedModels(), ModelSpec(str(model), "torch")
    race = Race(Request("Say a word.", 8), columns, spec)
    for _ in range(2):
        (score,) = board_after(columns, events_of(race, models)).scores
        assert not score.message
        models._loaded.clear()
    engine = models.get(spec, print)
    known = models.head(engine, draft, print)
    assert models.head(engine, draft, print) == known
    os.utime(draft / "w.safetensors", (2**33, 2**33))
    assert models.head(engine, draft, print) != known


def test_a_race_without_the_draft_shows_no_layers(folders: tuple[Path, ...]) -> None:
    """On CUDA, passes that show them are not captured: all later races of the model were slower."""
    model, draft, *_ = folders
    models, spec = LoadedModels(), ModelSpec(str(model), "torch")
    shown = list[set[int]]()
    for text in (f"speculative:draft={draft}", "kv", f"speculative:draft={draft}"):
        columns = (parse_column(text),)
        race = Race(Request("Say a word.", 8), columns, spec)
        (score,) = board_after(columns, events_of(race, models)).scores
        assert not score.message
        engine: Any = models.get(spec, print)
        shown.append(set(engine._tap.shown))
    assert shown == [{0, 1, 2}, set(), {0, 1, 2}]


def test_a_distribution_can_be_promised(folders: tuple[Path, ...]) -> None:
    model, draft, *_ = folders
    columns = (parse_column(f"speculative:draft={draft},promise=distribution,auto=off,k=3"),)
    race = Race(Request("Say a word.", 30, Sampling(0.8)), columns, ModelSpec(str(model), "torch"))
    (score,) = board_after(columns, events_of(race)).scores
    assert not score.message
    assert score.drafted > 0


def refusal(folders: tuple[Path, ...], draft: Path, target: ModelSpec | None = None) -> str:
    columns = (parse_column(f"speculative:draft={draft}"),)
    race = Race(Request("Say a word.", 4), columns, target or ModelSpec(str(folders[0]), "torch"))
    return board_after(columns, events_of(race)).scores[0].message


def test_what_no_column_can_draft_with_is_refused_by_name(
    folders: tuple[Path, ...], tmp_path: Path
) -> None:
    draft = folders[1]
    config = json.loads((draft / "config.json").read_text())
    weights = load_file(draft / "w.safetensors")

    def changed(name: str, stated: dict[str, Any], held: dict[str, torch.Tensor]) -> str:
        return refusal(folders, write(tmp_path / name, stated, held))

    narrow = weights | {"fc.weight": torch.zeros(32, 48)}
    assert "reads 48 numbers of its target's hidden states, and this target shows 96" in changed(
        "narrow", config, narrow
    )
    far = weights | {"d2t": weights["d2t"] + 7}
    assert "writes tokens up to 306, and this target has 300" in changed("far", config, far)
    deep = config | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}
    assert "layers 1, 2, 3, and this target has 3" in changed("deep", deep, weights)
    cut = {name: each for name, each in weights.items() if "down_proj" not in name}
    assert "(layers.0.mlp.down_proj.weight)" in changed("cut", config, cut)
    few = weights | {"embed_tokens.weight": torch.zeros(200, 32)}
    assert "vocabulary size 200, and this target's is 300" in changed("few", config, few)
    parallel = json.loads((folders[2] / "config.json").read_text()) | {"mask_token_id": 300}
    masked = load_file(folders[2] / "w.safetensors")
    assert "reads token 300 in place of tokens to come" in changed("mask", parallel, masked)
    other = {"architectures": ["DSparkDraftModel"]}
    assert "is a DSpark draft" in changed("dspark", other, weights)
    blind = {"architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [0, 1]}}
    assert "states no mask_token_id" in changed("blind", blind, weights)
    pickled = shutil.copytree(draft, tmp_path / "pickled")
    (pickled / "w.safetensors").rename(pickled / "pytorch_model.bin")
    assert "pickled ones are never loaded" in refusal(folders, pickled)
    assert "choose the torch engine" in refusal(folders, draft, ModelSpec("fake", "fake"))


def test_a_model_is_no_published_draft(folders: tuple[Path, ...]) -> None:
    model, draft, *_ = folders
    assert is_published(str(draft))
    assert not is_published(str(model))
    assert not is_published("int4")
    with pytest.raises(DerbyError, match="is a model draft"):
        read_published(model)
