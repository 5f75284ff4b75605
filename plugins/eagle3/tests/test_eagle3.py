"""EAGLE-3 drafts as they are published: their logits, whose states they read, that columns write
what KV reuse writes, and what is refused.

The folders beside this file were written by `speculators` 0.9.0 with random weights. The file
beside each holds what it computes with them: at every place of a text, the logits behind it, and
behind one and two tokens more that the draft reads its own states for.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_model import VOCABULARY, make
from decode_derby_eagle3_draft import Eagle3Network, LoadedDraft
from families import byte_tokenizer, random_model
from race_runs import board_after, events_of
from safetensors.torch import load_file, save_file

from backend.engines.torch.engine import TorchEngine
from backend.export.production import snippet
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.strategies.registry import strategies
from backend.types import ModelSpec, Request, Sampling

PUBLISHED = Path(__file__).parent
NAMES = ("llama", "llama-fc-norm", "qwen3")


def write(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
    """Make a draft's folder of that configuration and those weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in weights.items()}, folder / "w.safetensors")
    return folder


@pytest.fixture
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


def assert_like_speculators(folder: Path, target: TorchEngine, name: str) -> None:
    """Hold the draft's logits against those that `speculators` computed with its weights."""
    reference = load_file(PUBLISHED / f"{name}.safetensors")
    tokens, states = reference["tokens"].tolist(), reference["states"].numpy()
    logits = reference["logits"].numpy()  # [step, place, V']
    network, start = LoadedDraft(folder, target.model).open(), 0
    for end in (1, 2, 5, 6, 10):  # read in parts, each after guesses that are forgotten
        computed = network.read(start, tokens[start:end], states[start:end], wanted=True)
        assert np.abs(computed[0] - logits[0, end - 1]).max() < 1e-5
        for step in (1, 2):
            computed = network.guess(end + step - 1, tokens[end + step - 1])
            assert np.abs(computed[0] - logits[step, end - 1]).max() < 1e-5
        network.rewind(end)
        start = end
    network.close()


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_speculators(target: TorchEngine, name: str) -> None:
    assert_like_speculators(PUBLISHED / name, target, name)


def test_a_draft_in_its_authors_format_is_the_same(target: TorchEngine, tmp_path: Path) -> None:
    """They call the layer otherwise, state the sizes at the top, and leave out the embeddings."""
    weights = load_file(PUBLISHED / "llama" / "model.safetensors")
    config = json.loads((PUBLISHED / "llama" / "config.json").read_text())
    renamed = {name.replace("layers.0.", "midlayer."): each for name, each in weights.items()}
    embedding = renamed.pop("embed_tokens.weight")
    own = {"architectures": ["LlamaForCausalLMEagle3"], "norm_before_residual": True}
    folder = write(tmp_path / "draft", config["transformer_layer_config"] | own, renamed)
    with torch.no_grad():
        target.model.get_input_embeddings().weight.copy_(embedding)
    assert_like_speculators(folder, target, "llama")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """A model, and a draft for it in the format of the authors and in that of `speculators`."""
    root = tmp_path_factory.mktemp("eagle")
    model, size, count = make(root / "model"), 32, 200
    table = load_file(model / "model.safetensors")["model.embed_tokens.weight"]
    ids = torch.arange(VOCABULARY)[-count:]
    torch.manual_seed(1)
    rest = {
        "fc.weight": 0.1 * torch.randn(size, 3 * size),
        "norm.weight": torch.ones(size),
        "lm_head.weight": table[ids],
        "d2t": ids - torch.arange(count),
    }
    layer = {
        "input_layernorm.weight": torch.ones(size),
        "hidden_norm.weight": torch.ones(size),
        "post_attention_layernorm.weight": torch.ones(size),
        "self_attn.o_proj.weight": 0.05 * torch.randn(size, size),
        "mlp.gate_proj.weight": 0.1 * torch.randn(48, size),
        "mlp.up_proj.weight": 0.1 * torch.randn(48, size),
        "mlp.down_proj.weight": 0.1 * torch.randn(size, 48),
        **{
            f"self_attn.{part}_proj.weight": 0.1 * torch.randn(rows, 2 * size)
            for part, rows in (("q", 32), ("k", 16), ("v", 16))
        },
    }
    sizes = {
        "model_type": "llama",
        "vocab_size": VOCABULARY,
        "hidden_size": size,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-6,
    }
    reads = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    authors = {"architectures": ["LlamaForCausalLMEagle3"], "eagle_config": reads}
    theirs = {"speculators_model_type": "eagle3", "transformer_layer_config": sizes}
    own, named = (
        {f"{prefix}.{name}": each for name, each in layer.items()}
        for prefix in ("midlayer", "layers.0")
    )
    return (
        model,
        write(root / "authors", sizes | authors, rest | own),
        write(root / "speculators", theirs | reads, rest | named),
    )


def raced(folders: tuple[Path, ...], texts: list[str], tokens: int = 40, heat: float = 0.0) -> Any:
    columns = tuple(map(parse_column, texts))
    request = Request("Say a word.", tokens, Sampling(heat, seed=3))
    race = Race(request, columns, ModelSpec(str(folders[0]), "torch"))
    return board_after(columns, events_of(race, LoadedModels())).scores


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("more", ["", ",grammar=json"])
def test_columns_write_what_kv_reuse_writes(
    folders: tuple[Path, ...], temperature: float, more: str
) -> None:
    """In either format they guess the same, too."""
    plain = "kv:grammar=json" if more else "kv"
    texts = [f"eagle3:draft={draft},k=4{more}" for draft in folders[1:]]
    kv, authors, speculators = raced(folders, [plain, *texts], heat=temperature)
    assert kv.message == authors.message == speculators.message == ""
    assert authors.text == speculators.text == kv.text
    assert 0 < authors.drafted == speculators.drafted
    assert authors.accepted == speculators.accepted


def test_every_row_is_read_with_the_states_of_the_token_before_it(
    folders: tuple[Path, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was rejected on the way."""
    seen: dict[int, tuple[int, Any]] = {}
    read = Eagle3Network.read

    def noted(self: Eagle3Network, position: int, tokens: Any, states: Any, *, wanted: bool) -> Any:
        rows = zip(tokens, states, strict=True)
        seen.update({position + i: row for i, row in enumerate(rows)})
        return read(self, position, tokens, states, wanted=wanted)

    monkeypatch.setattr(Eagle3Network, "read", noted)
    columns = (parse_column(f"eagle3:draft={folders[1]},k=4"),)
    models, spec = LoadedModels(), ModelSpec(str(folders[0]), "torch")
    race = Race(Request("Say a word.", 24, Sampling(0.8, seed=1)), columns, spec)
    (score,) = board_after(columns, events_of(race, models)).scores
    assert score.drafted > score.accepted
    last = max(seen)
    assert last >= score.prompt_tokens + 20
    engine: Any = models.get(spec, print)
    start = engine.tokenizer.encode("Say a word.", chat=True)[:1]
    text = torch.tensor([[*start, *(seen[position][0] for position in range(1, last + 1))]])
    with torch.inference_mode():
        every = engine.model(text, output_hidden_states=True).hidden_states
    expected = torch.cat([every[i][0] for i in (0, 1, 2)], -1).numpy()
    for position in range(1, last + 1):
        assert np.abs(seen[position][1] - expected[position - 1]).max() < 1e-3
    assert not any(layer._forward_pre_hooks for layer in engine.model.model.layers)


def test_a_draft_is_loaded_once_and_goes_with_its_model(folders: tuple[Path, ...]) -> None:
    column = parse_column(f"eagle3:draft={folders[1]}")
    opened = []
    for _ in range(2):
        engine = LoadedModels().get(ModelSpec(str(folders[0]), "torch"), print)
        opened += [column.strategy.weights(column.settings(), engine) for _ in range(2)]
    assert opened[0] == opened[1]
    assert opened[1] != opened[2]


def test_what_no_column_can_draft_with_is_one_sentence(
    folders: tuple[Path, ...], tmp_path: Path
) -> None:
    draft = folders[1]
    config = json.loads((draft / "config.json").read_text())
    weights = load_file(draft / "w.safetensors")

    def refusal(name: str, changes: dict[str, Any], tensors: dict[str, torch.Tensor]) -> str:
        folder = write(tmp_path / name, config | changes, tensors)
        return raced(folders, [f"eagle3:draft={folder}"], 4)[0].message

    narrow = weights | {"fc.weight": torch.zeros(32, 48)}
    assert "(48 hidden numbers" in refusal("narrow", {}, narrow)
    far = weights | {"d2t": weights["d2t"] + 7}
    assert "(token 306 of 300)" in refusal("far", {}, far)
    deep = {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}}
    assert "(layers (1, 2, 3) of 3)" in refusal("deep", deep, weights)
    cut = {name: each for name, each in weights.items() if "down_proj" not in name}
    assert "(layers.0.mlp.down_proj.weight)" in refusal("cut", {}, cut)
    few = weights | {"embed_tokens.weight": torch.zeros(200, 32)}
    assert "(200 tokens of 300)" in refusal("few", {}, few)
    other = {"architectures": ["DFlashDraftModel"]}
    assert "llama" in refusal("other", other, weights)
    pickled = shutil.copytree(draft, tmp_path / "pickled")
    (pickled / "w.safetensors").rename(pickled / "pytorch_model.bin")
    assert "pickle" in raced(folders, [f"eagle3:draft={pickled}"], 4)[0].message
    assert "is no EAGLE-3 draft" in raced(folders, [f"eagle3:draft={folders[0]}"], 4)[0].message
    assert "draft=NAME" in raced(folders, ["eagle3"], 4)[0].message
    fake = (parse_column(f"eagle3:draft={draft}"),)
    race = Race(Request("Say a word.", 4), fake, ModelSpec("fake", "fake"))
    assert "another engine" in board_after(fake, events_of(race)).scores[0].message


def test_it_is_installed_and_production_names_the_draft_for_vllm(folders: tuple[Path, ...]) -> None:
    assert "eagle3" in strategies()
    board = Scoreboard([parse_column(f"eagle3:draft={folders[2]},k=4")])
    target = ModelSpec(str(folders[0]), "torch")
    code = snippet(board, 0, Request("Hi"), target, "vLLM").code
    assert f"'method': 'eagle3', 'model': {str(folders[2])!r}, 'num_speculative_tokens': 4" in code
