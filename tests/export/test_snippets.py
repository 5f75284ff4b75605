"""Code for production, executed: each snippet prints what the column writes that "Race this code"
adds.
"""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from race_runs import board_after, events_of

from backend.engines.eagle3.checkpoint import SHIPPED
from backend.export.draft import written_draft
from backend.export.production import snippets
from backend.export.templates import CODE_FOLDER
from backend.models.builtin import built_in_gguf
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling

pytestmark = pytest.mark.model

ROOT = Path(__file__).parents[2]
QUESTION = Request("Name the days of the week. Then name them again.", 16)
DRAWN = replace(QUESTION, sampling=Sampling(0.8, 40, 0.9, 7, 0.02, 1.1))

#: The program of llama.cpp, for a shell that gives it no standard input.
SHELL = "#!/bin/sh\n"
LLAMA_SERVER = f"""{SHELL}exec >/dev/null
export PYTHONPATH={ROOT}
sleep 60 | {sys.executable} -m backend.libraries.llamacpp "$@"
"""


def run(program: str, code: str, folder: Path) -> str:
    """What code prints that is run in a folder of its own, with what it leaves running."""
    path = f"{folder}:{os.environ['PATH']}"
    with subprocess.Popen(
        [program, "-c", code],
        cwd=folder,
        env={**os.environ, "PATH": path, "HF_HUB_OFFLINE": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            return process.communicate(timeout=240)[0]
        finally:
            with suppress(ProcessLookupError):  # nothing is left
                os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `export-draft` writes."""
    folder, target = tmp_path_factory.mktemp("draft"), ModelSpec()
    for _ in written_draft(SHIPPED, target, built_in_gguf(print), folder):
        pass
    return folder


def prepare(folder: Path, draft: Path) -> None:
    """Lay out what is in a clone, an exported draft, and the programs that snippets call."""
    (folder / "draft").symlink_to(draft)
    (folder / CODE_FOLDER).parent.mkdir(parents=True)
    (folder / CODE_FOLDER).symlink_to(ROOT / CODE_FOLDER)
    gguf = built_in_gguf(print)
    programs = {"llama-server": LLAMA_SERVER, "pip": SHELL, "unzip": f"{SHELL}ln -s {gguf} .\n"}
    for name, code in programs.items():
        program = folder / name
        program.write_text(code)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)


@pytest.mark.parametrize(
    ("library", "columns", "request_"),
    [
        ("transformers", ("lookup:k=4", "speculative:k=3", "lookahead:window=4"), DRAWN),
        (
            "openvino-genai",
            (
                "lookup:k=4,ngram=2",
                "speculative:draft=int4,k=3",
                "speculative:draft=trained,k=3",
                "kv@int4-exact",
            ),
            QUESTION,
        ),
        ("llama.cpp", ("lookup:k=4", "speculative:draft=trained,k=3"), QUESTION),
    ],
)
def test_code_prints_what_its_column_writes(
    library: str, columns: tuple[str, ...], request_: Request, tmp_path: Path, draft: Path
) -> None:
    target = ModelSpec()
    prepare(tmp_path, draft)
    ours = Scoreboard(list(map(parse_column, columns)))
    codes = [each[library] for each in snippets(ours, request_, target).values()]
    theirs = tuple(each.column for each in codes if each.column is not None)
    assert len(theirs) == len(columns)
    scores = board_after(theirs, events_of(Race(request_, theirs, target), LoadedModels())).scores
    assert [score.message for score in scores] == [""] * len(columns)
    with socket.create_server(("127.0.0.1", 0)) as socket_:
        port = socket_.getsockname()[1]
    program = "bash" if library == "llama.cpp" else sys.executable
    for each, score in zip(codes, scores, strict=True):
        printed = run(program, each.code.replace("8080", str(port)), tmp_path)
        if library == "llama.cpp":
            printed = json.loads(printed)["choices"][0]["message"]["content"]
        assert printed.strip() == score.text.strip()
        assert len(score.text) > 40
