"""The precision that a model runs at for which none was named."""

from pathlib import Path

import chat_model
import pytest
import torch
from safetensors.torch import save_file
from tiny_gguf import write_shape

from backend.cli.options import Target
from backend.models.files import weights_in
from backend.racing import models as loading
from backend.racing import usual
from backend.racing.models import LoadedModels
from backend.racing.usual import usual_spec
from backend.types import ModelSpec


@pytest.mark.parametrize(
    ("engine", "first", "second"), [("openvino", "fp32", "int8"), ("torch", "fp32", "bf16")]
)
def test_a_large_model_of_ones_own_runs_at_the_second_precision_and_says_why(
    engine: str, first: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of gigabytes were converted to fp32 and loaded at twice their size or more."""
    spec, said = ModelSpec(str(chat_model.make(tmp_path)), engine), list[str]()
    assert usual_spec(spec, said.append).precision == first
    assert said == []
    monkeypatch.setattr(usual, "LARGE", 1e3)
    assert usual_spec(spec, said.append).precision == second
    (sentence,) = said
    assert f"it runs at {second}" in sentence
    assert f"or at {first} with --precision {first}" in sentence
    named = Target(spec.name, engine, first)
    assert named.spec.precision == first, "who names one gets it"
    assert Target(spec.name, engine).spec.precision == second


@pytest.mark.parametrize(
    "spec", [ModelSpec(), ModelSpec("fake", "fake"), ModelSpec("/no/such/model")]
)
def test_all_others_run_at_the_first(spec: ModelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(usual, "LARGE", 0.0)
    assert usual_spec(spec, pytest.fail).precision == "fp32"


def test_a_ready_made_model_runs_as_it_is_stored(tmp_path: Path) -> None:
    """It was asked for at fp32, and then refused: "choose int4 instead of 'fp32'"."""
    folder = chat_model.make(tmp_path)
    (folder / "model.safetensors").unlink()
    (folder / "openvino_model.bin").write_bytes(b"")
    for kinds, precision in (("u8 i4", "int4"), ("f32 i8", "int8"), ("f16", "fp32")):
        written = "".join(f'<data element_type="{kind}" />' for kind in kinds.split())
        (folder / "openvino_model.xml").write_text(written)
        assert usual_spec(ModelSpec(str(folder)), pytest.fail).precision == precision


def test_weights_are_counted_once_and_packed_ones_as_many_as_they_hold(tmp_path: Path) -> None:
    """Makers' own files beside transformers' doubled every estimate, and MXFP4 halved it."""
    save_file({"a": torch.zeros(6, 5)}, tmp_path / "model-1.safetensors")
    save_file({"a": torch.zeros(6, 5)}, tmp_path / "consolidated.safetensors")
    packed = {"b_blocks": torch.zeros(4, 16), "b_scales": torch.zeros(4), "c_scales": torch.ones(3)}
    save_file(
        {name: each.to(torch.uint8) for name, each in packed.items()},
        tmp_path / "model-2.safetensors",
    )
    assert weights_in(tmp_path) == 30 + 128 + 3


def test_rows_of_a_16_bit_model_take_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "LARGE", 1e3)
    said = list[str]()
    LoadedModels().get(ModelSpec(str(chat_model.make(tmp_path)), "torch", "bf16"), said.append, 512)
    assert f"{2 * 3 * 2 * 8 * 2 * 512 / 1e6:.1f} MB a column" in said[-1]


def test_what_a_large_model_needs_is_said_before_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, said = ModelSpec(str(chat_model.make(tmp_path)), "torch"), list[str]()
    LoadedModels().get(spec, said.append)
    assert said == [f"Loading {spec}..."]
    monkeypatch.setattr(loading, "LARGE", 1e3)
    for context, tokens in ((100, "100"), (0, "512"), (9999, "512")):
        LoadedModels().get(spec, said.append, context)
        assert said[-1].startswith(f"Loading {spec} (")
        # 3 layers of 2 heads of 8 numbers, keys and values
        assert f"{2 * 3 * 2 * 8 * 4 * int(tokens) / 1e6:.1f} MB a column" in said[-1]
        assert f"for {tokens} tokens" in said[-1]
        assert said[-1].endswith("of memory are free)...")


def test_a_large_file_for_llama_cpp_is_not_made_into_a_folder_to_say_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The size of its cache was once looked up in a folder that would have been made of it: a file
    of more than a gigabyte was converted first, or refused by a reader that it does not need.
    """
    monkeypatch.setattr(loading, "LARGE", 0.0)
    monkeypatch.setattr(loading, "model_files", lambda *_, **__: pytest.fail("made into a folder"))
    write_shape(tmp_path / "hybrid.gguf", "lfm2", **{"tokenizer.ggml.merges": ["a b"]})
    spec, said = ModelSpec(str(tmp_path / "hybrid.gguf"), "llamacpp", "gguf"), list[str]()
    LoadedModels().get(spec, said.append)
    assert "of weights; " in said[0]
