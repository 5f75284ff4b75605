"""The precision that a model runs at for which none was named."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import chat_model
import pytest
import torch
from safetensors.torch import save_file

from backend.cli.options import Target
from backend.machine import computes_bf16
from backend.models.files import weights_in
from backend.racing import models as usual
from backend.racing.models import usual_spec
from backend.types import ModelSpec


@pytest.mark.parametrize(
    ("engine", "first", "second"), [("openvino", "fp32", "int8"), ("torch", "fp32", "bf16")]
)
def test_a_large_model_of_ones_own_runs_at_the_second_precision_and_says_why(
    engine: str, first: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models of gigabytes were converted to fp32 and loaded at twice their size or more."""
    monkeypatch.setattr(usual, "computes_bf16", lambda: True)
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


def test_a_processor_without_bf16_runs_a_large_model_at_fp32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes bf16 by detours, and several times as slowly."""
    monkeypatch.setattr(usual, "LARGE", 1e3)
    facts = tmp_path / "cpuinfo"
    for flags, precision in (("fpu avx2 avx512f", "fp32"), ("fpu avx512_bf16 amx_tile", "bf16")):
        facts.write_text(f"model name : x\nflags : {flags}\n")
        monkeypatch.setattr(usual, "computes_bf16", partial(computes_bf16, facts))
        spec = ModelSpec(str(chat_model.make(tmp_path / flags)), "torch")
        assert usual_spec(spec, lambda _: None).precision == precision
        assert usual_spec(replace(spec, device="CUDA"), lambda _: None).precision == "bf16"


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


def test_weights_are_counted_once(tmp_path: Path) -> None:
    """Makers' own files beside transformers' doubled every estimate."""
    save_file({"a": torch.zeros(6, 5)}, tmp_path / "model-1.safetensors")
    save_file({"a": torch.zeros(6, 5)}, tmp_path / "consolidated.safetensors")
    save_file({"b": torch.zeros(4, 16)}, tmp_path / "model-2.safetensors")
    assert weights_in(tmp_path) == 30 + 64
