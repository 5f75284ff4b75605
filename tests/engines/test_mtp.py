"""MTP layers, in the format of `speculators` and in their model's own files: their logits, that
columns write what KV reuse writes, over recurrent layers too, and what is refused.

The folders in `mtp/` were written by `speculators` 0.9.0 with random weights. The file beside each
holds what it computes with them, as in `eagle3/`, and the target's embeddings and output
projection. Later logits are of its layer over the rows of the text and those of the guesses.
"""

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import RECURRENT, byte_tokenizer, random_model
from published_drafts import assert_goes_on, assert_like_speculators, write
from races import board_after, events_of
from safetensors.torch import load_file, save_file

from backend.bench.prompts import PROMPTS
from backend.bench.verify import cases, runs_on, verified_columns, verify
from backend.engines.heads.published import is_published, read_published
from backend.engines.heads.torch_draft import open_published
from backend.engines.torch.engine import TorchEngine
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.strategies.speculative import MTP, SPECULATIVE
from backend.types import ModelSpec, Request, Sampling

PUBLISHED = Path(__file__).parent / "mtp"
NAMES = ("qwen3", "qwen3_5", "qwen3_next")

#: What the parts are called in a model's own files.
OWN = {"input_proj": "fc", "final_layernorm": "norm"} | {
    theirs: f"pre_fc_norm_{part}"
    for theirs, part in (("hidden_layernorm", "hidden"), ("token_layernorm", "embedding"))
}


def target_of(name: str, reference: dict[str, torch.Tensor]) -> TorchEngine:
    """The model that the published layer was made for, as far as the layer sees it."""
    config = json.loads((PUBLISHED / name / "config.json").read_text())["transformer_layer_config"]
    model = random_model(**config)
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(reference["embedding"])
        model.get_output_embeddings().weight.copy_(reference["output"])
    return TorchEngine(ModelSpec("tiny", "torch"), model, byte_tokenizer(), 512)


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_speculators(name: str, tmp_path: Path) -> None:
    """From a folder of its own, and from the files of the model whose layer it is."""
    reference = load_file(PUBLISHED / f"{name}.safetensors")
    target = target_of(name, reference)
    assert_like_speculators(PUBLISHED / name, target, reference)
    weights = load_file(PUBLISHED / name / "model.safetensors")
    del weights["verifier_lm_head.weight"]
    own = {renamed: each for key, weight in weights.items() for renamed, each in owned(key, weight)}
    model = write(tmp_path / "model", {"architectures": ["Any"], "num_hidden_layers": 4}, own)
    assert not is_published(str(model))
    assert_like_speculators(model, target, reference)


def owned(key: str, weight: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """A tensor of `speculators` as a model's own files have it: each expert's by itself."""
    part, _, kind = key.removeprefix("mtp_layers.0.").rpartition(".")
    if part in OWN:
        return [(f"mtp.{OWN[part]}.{kind}", weight)]
    if kind == "gate_up_proj":
        halves = zip(("gate", "up"), weight.chunk(2, 1), strict=True)
        return [
            (f"mtp.layers.0.{part}.{i}.{name}_proj.weight", each)
            for name, half in halves
            for i, each in enumerate(half)
        ]
    if kind == "down_proj":
        names = (f"mtp.layers.0.{part}.{i}.down_proj.weight" for i in range(len(weight)))
        return list(zip(names, weight, strict=True))
    return [(f"mtp.layers.0.{part}.{kind}", weight)]


def test_the_layer_behind_a_models_last_one_is_read_too(tmp_path: Path) -> None:
    """DeepSeek-V3's shape. Its next step reads what it had before its own norm. The reference is
    transformers' layer over the whole text.
    """
    model = random_model(
        "deepseek_v3",
        vocab_size=64,
        hidden_size=16,
        intermediate_size=24,
        moe_intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        q_lora_rank=8,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=4,
        v_head_dim=8,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        max_position_embeddings=512,
    )
    target = TorchEngine(ModelSpec("tiny", "torch"), model, byte_tokenizer(), 512)
    decoder = model.get_decoder()
    layer, norm, rotary = decoder.layers[-1], decoder.norm, decoder.rotary_emb
    torch.manual_seed(2)
    fc = 0.3 * torch.randn(16, 32)
    place = "model.layers.2."
    own = {f"{place}{name}": each for name, each in layer.state_dict().items()}
    norms = dict.fromkeys(("enorm", "hnorm", "shared_head.norm"), torch.ones(16))
    own |= {f"{place}{name}.weight": each.clone() for name, each in norms.items()}
    own |= {f"{place}eh_proj.weight": fc, f"{place}embed_tokens.weight": torch.zeros(64, 16)}
    folder = write(tmp_path / "model", {"num_hidden_layers": 2}, own)
    states, tokens = torch.randn(6, 16), torch.randint(0, 64, (7,))

    @torch.inference_mode()
    def expected(hidden: torch.Tensor, ids: torch.Tensor) -> tuple[Any, torch.Tensor]:
        embedded = model.get_input_embeddings()(ids)
        x = torch.cat([norm(embedded), norm(hidden)], -1)[None] @ fc.T
        n = len(ids)
        mask = torch.full((n, n), torch.finfo(torch.float32).min).triu(1)[None, None]
        turned = rotary(x, torch.arange(n)[None])
        out = layer(x, attention_mask=mask, position_embeddings=turned)[0]
        return model.get_output_embeddings()(norm(out[-1])).numpy(), out[-1:]

    network = open_published(read_published(folder), target, print).open()
    logits, predicted = expected(states, tokens[:6])
    found = network.read(1, tokens[:6].tolist(), states.numpy(), wanted=True)
    assert np.abs(found[0] - logits).max() < 1e-5
    logits, _ = expected(torch.cat([states, predicted]), tokens)
    assert np.abs(network.guess(7, int(tokens[6]))[0] - logits).max() < 1e-5
    network.close()


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> ModelSpec:
    """A model with recurrent layers, and a layer of its own that is often right: both go by the
    last token above all.
    """
    folder = tmp_path_factory.mktemp("mtp") / "model"
    stated = dict(RECURRENT["qwen3_5"])
    model = random_model(stated.pop("model_type"), **stated)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "down_proj" in name or "o_proj" in name or "out_proj" in name:
                weight.mul_(0.3)
        model.get_input_embeddings().weight.mul_(3)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    layer: dict[str, torch.Tensor] = model.get_decoder().layers[-1].state_dict()
    size = model.config.hidden_size
    weights = load_file(folder / "model.safetensors")
    weights |= {f"mtp.layers.0.{name}": each.clone() for name, each in layer.items()}
    for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
        weights[f"mtp.{name}.weight"] = torch.zeros(size)
    weights["mtp.fc.weight"] = torch.cat([torch.eye(size), torch.zeros(size, size)], 1)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return ModelSpec(str(folder), "torch")


#: Texts of three tokens that two columns write of each.
SEEDS = 150

PLAIN = Request("one two three, one two", 32, chat=False)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("more", ["", ",grammar=json"])
def test_columns_write_what_kv_reuse_writes(qwen: ModelSpec, temperature: float, more: str) -> None:
    texts = ["kv:grammar=json" if more else "kv", f"speculative:draft=mtp,auto=off,k=3{more}"]
    columns = tuple(parse_column(text) for text in texts)
    request = replace(PLAIN, sampling=Sampling(temperature, seed=6))
    plain, drafted = board_after(columns, events_of(Race(request, columns, qwen))).scores
    assert plain.message == drafted.message == ""
    assert drafted.text == plain.text
    assert drafted.accepted < drafted.drafted
    assert more or drafted.accepted, "its guesses cannot follow a grammar that it does not see"


@pytest.mark.parametrize("saved", [False, True], ids=["cache", "snapshot"])
def test_an_answer_goes_on_as_if_it_had_not_ended(
    qwen: ModelSpec, saved: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(PLAIN, max_new_tokens=16, sampling=Sampling(0.8, seed=2))
    assert_goes_on(request, qwen, "mtp", tmp_path if saved else None, monkeypatch)


def test_a_program_s_slots_are_filled_alike(qwen: ModelSpec) -> None:
    program = (
        '{{select "s" "red|green"}}: {{gen "a" regex="[a-z]{9}"}} and {{gen "b" max_tokens=9}}'
    )
    columns = tuple(parse_column(t) for t in ("kv", "speculative:draft=mtp,auto=off,k=3"))
    request = replace(PLAIN, prompt=program, sampling=Sampling(0.8, seed=2))
    plain, drafted = board_after(columns, events_of(Race(request, columns, qwen))).scores
    assert plain.message == drafted.message == ""
    assert (drafted.values, drafted.tokens) == (plain.values, plain.tokens)
    assert drafted.drafted > 0


@pytest.mark.thorough
def test_the_promised_distribution_is_the_plain_columns(qwen: ModelSpec) -> None:
    """Of the second and third token, over many seeds; with every guess accepted it is another."""
    names = "kv", "speculative:draft=mtp,auto=off,k=2,promise=distribution"
    columns, models = tuple(map(parse_column, names)), LoadedModels()
    counts: list[Counter[tuple[int, ...]]] = [Counter(), Counter()]
    accepted = 0
    for seed in range(SEEDS):
        request = replace(PLAIN, max_new_tokens=3, sampling=Sampling(1.0, top_k=2, seed=seed))
        scores = board_after(columns, events_of(Race(request, columns, qwen), models)).scores
        for count, score in zip(counts, scores, strict=True):
            assert not score.message
            count[tuple(score.tokens)] += 1
        accepted += scores[1].accepted
    plain, drafted = counts
    assert accepted > SEEDS / 4
    away = sum(abs(plain[text] - drafted[text]) for text in plain | drafted) / SEEDS / 2
    assert away < 0.15


def test_verify_runs_it_where_the_model_has_the_layer(qwen: ModelSpec) -> None:
    columns = [c for c in verified_columns() if c.settings().get("draft") == MTP]
    assert columns
    assert not any(runs_on(column, ModelSpec(engine="torch")) for column in columns)
    assert not any(runs_on(column, ModelSpec("fake", "fake")) for column in columns)
    assert all(runs_on(column, qwen) for column in columns)
    checked = (parse_column("kv"), *columns)
    for result in verify(
        cases((qwen,), PROMPTS[:1], (0.0, 0.8), (1,)), LoadedModels(), 12, checked
    ):
        assert result.equal, result.verdicts
        assert result.tokens > 0


def test_what_cannot_draft_is_refused_by_name(tmp_path: Path) -> None:
    reference = load_file(PUBLISHED / "qwen3.safetensors")
    target = target_of("qwen3", reference)
    weights = load_file(PUBLISHED / "qwen3" / "model.safetensors")
    config = json.loads((PUBLISHED / "qwen3" / "config.json").read_text())

    def refused(name: str, said: str, **layer: Any) -> None:
        stated = {"transformer_layer_config": config["transformer_layer_config"] | layer}
        folder = write(tmp_path / name, config | stated, weights)
        with pytest.raises(DerbyError, match=said):
            open_published(read_published(folder), target, print)

    refused("wide", "of hidden size 32, and this target's is 16", hidden_size=32)
    refused("far", "of vocabulary size 99, and this target's is 64", vocab_size=99)
    refused("other", "of type qwen3_next, and this target's is qwen3", model_type="qwen3_next")
    del weights["mtp_layers.0.input_proj.weight"]
    refused("cut", r"\(fc\.weight\): restore its files")
    target.model.save_pretrained(tmp_path / "none")
    target.spec = replace(target.spec, name=str(tmp_path / "none"))
    with pytest.raises(DerbyError, match=r"none' have no MTP layer .*: choose another draft\.$"):
        SPECULATIVE.weights({"draft": "mtp"}, target)
