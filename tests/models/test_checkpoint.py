"""A checkpoint that cannot be read is refused by a sentence that names the file, before a race."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from backend.errors import DerbyError
from backend.models.checkpoint import READERS, UNPACKED, require_convertible
from backend.models.files import model_files

FACTS = {"model_type": "llama", "max_position_embeddings": 9, "vocab_size": 9}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint whose files are whole."""
    (tmp_path / "config.json").write_text(json.dumps(FACTS))
    save_file({"a": np.zeros(64, np.float32)}, tmp_path / "model.safetensors")
    return tmp_path


def refusal(folder: Path) -> str:
    with pytest.raises(DerbyError) as refused:
        model_files(str(folder), lambda _: None)
    sentence = str(refused.value)
    assert sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


def test_whole_files_are_read(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    assert model_files(str(folder), lambda _: None).weights == 64


def test_a_pointer_is_not_the_weights(folder: Path) -> None:
    """OpenVINO said of one that the memory ran out, and torch that something broke."""
    (folder / "model.safetensors").write_bytes(POINTER)
    assert "model.safetensors" in refusal(folder)
    assert "git lfs pull" in refusal(folder)


@pytest.mark.parametrize("length", [0, 4, 20, -1])
def test_cut_weights_are_to_be_fetched_anew(folder: Path, length: int) -> None:
    """They were an internal error, and 130 lines of traceback."""
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    assert "model.safetensors" in refusal(folder)
    assert "fetch it again" in refusal(folder)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", POINTER, b'{"version": "1.0", "model": [1'])
def test_a_tokenizer_that_is_cut_is_named(folder: Path, data: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(data)
    assert "tokenizer.json" in refusal(folder)


@pytest.mark.parametrize("method", READERS)
def test_quantised_weights_name_their_format_and_what_reads_it(
    folder: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backend.models.checkpoint.find_spec", lambda _: None)
    config = FACTS | {"quantization_config": {"quant_method": method, "bits": 4}}
    (folder / "config.json").write_text(json.dumps(config))
    assert method in refusal(folder)
    assert READERS[method] in refusal(folder)


@pytest.mark.parametrize("method", ["quanto", "no such method"])
def test_a_package_inside_another_is_looked_for_itself(folder: Path, method: str) -> None:
    """`optimum` is installed, which once passed for `optimum.quanto`."""
    config = FACTS | {"quantization_config": {"quant_method": method}}
    (folder / "config.json").write_text(json.dumps(config))
    assert method in refusal(folder)
    assert ("optimum.quanto" in refusal(folder)) == (method in READERS)


def test_a_folder_is_no_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model's folder called bitsandbytes passed for it where the program was started."""
    (folder / "bitsandbytes").mkdir()
    monkeypatch.syspath_prepend(folder)
    config = FACTS | {"quantization_config": {"load_in_4bit": True}}
    (folder / "config.json").write_text(json.dumps(config))
    assert "install the package bitsandbytes" in refusal(folder)


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"quantization_config": {"quant_method": "modelopt"}}, "modelopt"),
        ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
        ({"quantization_config": {"bits": 4}, "quantization": {"bits": 4}}, "MLX"),
        ({"quantization": {"bits": 4, "group_size": 64}}, "MLX"),
        ({"text_config": {"quantization_config": {"quant_method": "gptq"}}}, "gptq"),
        ({"compression_config": {"quant_method": "compressed-tensors"}}, "compressed-tensors"),
    ],
)
def test_a_format_is_found_wherever_it_is_stated(
    folder: Path, config: dict[str, object], method: str
) -> None:
    """transformers skips a format that it does not know, and draws the weights at random."""
    (folder / "config.json").write_text(json.dumps(FACTS | config))
    assert f"quantised as {method}, which no engine here can read" in refusal(folder)


@pytest.mark.parametrize("method", UNPACKED)
def test_a_format_that_needs_no_package_is_read(folder: Path, method: str) -> None:
    config = FACTS | {"quantization_config": {"quant_method": method}}
    (folder / "config.json").write_text(json.dumps(config))
    assert model_files(str(folder), lambda _: None).weights == 64


@pytest.mark.parametrize("text", ["[]", "null", "7", '"{}"'])
@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer_config.json"])
def test_settings_that_are_no_object_are_named(folder: Path, file: str, text: str) -> None:
    """They were an internal error (TypeError, AttributeError)."""
    (folder / file).write_text(text)
    assert file in refusal(folder)


@pytest.mark.thorough
def test_openvino_names_the_engine_that_reads_a_format(folder: Path) -> None:
    """Only where its package is installed: before that, no engine reads it."""
    config = FACTS | {"quantization_config": {"quant_method": "gptq"}}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(DerbyError, match=r"quantised as gptq.*choose the torch engine"):
        require_convertible(folder, "mine")
