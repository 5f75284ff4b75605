"""llama.cpp: a file's rows and tokenizer, and what is not named where it is not installed."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from races import board_after, events_of
from tiny_gguf import random_weights, write_weights

from backend.engines.llamacpp import engine as engine_module
from backend.engines.llamacpp import library as library_module
from backend.engines.llamacpp.abilities import PACKAGE, VERSION
from backend.engines.llamacpp.engine import LlamaCppEngine, open_llamacpp
from backend.errors import DerbyError
from backend.models.files import BUILT_IN, model_files
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.text import HfTokenizer
from backend.types import Logits, ModelSpec, Request

#: llama.cpp wants some; this one makes no token of the vocabulary, so nothing is merged.
MERGES = {"tokenizer.ggml.merges": ["! !"]}
TEMPLATE = {
    "tokenizer.chat_template": (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    )
}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_weights(path, "Q4_1", random_weights(), **MERGES, **TEMPLATE)
    return path


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Threads that wait for one another would make tests beside others slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_module, "threads", lambda: 1)
        yield


def opened(path: Path, precision: str = "gguf") -> LlamaCppEngine:
    return open_llamacpp(ModelSpec(str(path), "llamacpp", precision), print)


def alone(engine: LlamaCppEngine, tokens: Sequence[int]) -> Logits:
    """Logits after `tokens`, fed one by one to a session of their own: float32 [V]."""
    session = engine.open()
    logits = np.zeros((1, 0), np.float32)
    for token in tokens:
        logits = session.forward([token], [-1], (0,))
        session.keep([0])
    session.close()
    return logits[0]


def test_no_space_is_read_within_a_text(tmp_path: Path, one_thread: None) -> None:
    """llama.cpp begins each text of a SentencePiece vocabulary with a space, which programs read
    behind every slot and nobody was shown.
    """
    letters = [f"<0x{i:02X}>" for i in range(253)]
    written = ["<unk>", "</s>", *letters, "\u2581", "\u2581a"], [2, 3, *[6] * 253, 1, 1]
    spm = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": [0.0] * 257}
    ids = {"tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.bos_token_id": 1}
    path = tmp_path / "spm.gguf"
    write_weights(path, "F32", random_weights(), vocabulary=written, **spm, **ids)
    tokenizer = opened(path).tokenizer
    spelled = lambda tokens: b"".join(tokenizer.spelling[token] for token in tokens)  # noqa: E731
    assert spelled(tokenizer.encode("a", chat=False)) == b" a"
    for text in ("a", ", and", " a", "\n\na", ""):
        assert spelled(tokenizer.encode_plain(text)) == text.encode()


def test_what_cannot_be_loaded_is_one_sentence(file: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:20_000])
    with pytest.raises(DerbyError, match=r"cannot load .*cut.gguf.* fetch the file again"):
        opened(cut)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DerbyError, match="is no GGUF file, and llama"):
        opened(tmp_path / "empty")
    with pytest.raises(DerbyError, match="weights, gguf, not 'int4': choose gguf"):
        opened(file, "int4")


def test_another_build_is_refused_before_anything_is_called_with_its_structures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = library_module.library.__wrapped__
    monkeypatch.setitem(library_module.CONTEXT_DEFAULTS, "n_batch", 4096)
    with pytest.raises(DerbyError, match="n_batch is 2048"):
        known()
    monkeypatch.setattr(library_module, "version", lambda _: "2031.1.1")
    with pytest.raises(DerbyError, match=rf"{PACKAGE} 2031.1.1 .* install {PACKAGE} {VERSION}"):
        known()


def test_the_version_that_is_known_is_the_one_that_is_installed() -> None:
    stated = (ROOT / "requirements-llamacpp.txt").read_text().splitlines()
    assert stated[-1] == f"{PACKAGE}=={VERSION}"


def test_nothing_names_it_where_it_is_not_installed() -> None:
    program = f"""
import sys
sys.modules[{PACKAGE!r}] = None
from backend.engines.registry import all_precisions, device_help, engine_help, precision_help
said = [*all_precisions(), device_help(), engine_help(), precision_help()]
assert "openvino" in str(said) and "llama" not in str(said) and "gguf" not in str(said), said
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_model_with_recurrent_state_is_refused(
    file: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = library_module.library()
    monkeypatch.setattr(known, "llama_model_is_hybrid", lambda _: True, raising=False)
    with pytest.raises(DerbyError, match=r"keeps recurrent state, .*: choose the torch engine"):
        opened(file)


def test_a_tree_computes_what_single_steps_do(file: Path, one_thread: None) -> None:
    engine = opened(file)
    session = engine.open()
    logits = session.forward([5, 6, 7, 8, 9], [-1, 0, 0, 1, 2], range(5)).copy()
    session.keep([0, 2, 4])
    behind = session.forward([11], [-1], (0,))[0]
    for row, path in ((behind, [5, 7, 9, 11]), (logits[3], [5, 6, 8]), (logits[4], [5, 7, 9])):
        expected = alone(engine, path)
        assert np.abs(row - expected).max() < 0.05 * np.abs(expected).max()


@pytest.mark.model
def test_the_built_in_model_runs_from_the_file_that_was_published(one_thread: None) -> None:
    files = model_files(BUILT_IN, print)
    texts = ("Hello  world\n\tx = 3.14", "naïve 漢字 \u200d", " a\r\n")
    ours = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
    target = ModelSpec(BUILT_IN, "llamacpp", "gguf")
    # Its engine is gone at once: the tokenizer read names in freed memory once.
    own = open_llamacpp(target, print).tokenizer
    assert own.fingerprint == ours.fingerprint
    for text in texts:
        for chat in (False, True):
            assert own.encode(text, chat=chat) == ours.encode(text, chat=chat)
    columns = tuple(map(parse_column, ("kv", "lookup:k=4", "lookahead:window=3,level=3,guesses=3")))
    request = Request("Count: 1 2 3 1 2 3", 24)
    board = board_after(columns, events_of(Race(request, columns, target)))
    assert {(score.state in ("done", "stopped"), score.message) for score in board.scores} == {
        (True, "")
    }
