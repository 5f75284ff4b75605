"""What is llama.cpp's own: paths as sequences, rows that do not depend on widths, the file's own
tokenizer and template, and what is not named where it is not installed.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from races import board_after, events_of
from tiny_gguf import (
    qwen35_weights,
    random_weights,
    write_gguf,
    write_k_quants,
    write_shape,
    write_weights,
)

from backend.bench.verify import TARGETS, runs_on, verified_columns
from backend.engines.cache import NewRows
from backend.engines.llamacpp import engine as engine_module
from backend.engines.llamacpp import library as library_module
from backend.engines.llamacpp.abilities import PACKAGE, VERSION
from backend.engines.llamacpp.context import FIRST_CELLS
from backend.engines.llamacpp.engine import LlamaCppEngine, open_llamacpp
from backend.errors import DerbyError
from backend.models.files import BUILT_IN, model_files
from backend.models.gguf import gguf_folder
from backend.models.gguf_header import read_header
from backend.models.gguf_tokenizer import tokenizer_from_gguf
from backend.racing.race import Race
from backend.strategies.column import parse_column
from backend.text import HfTokenizer
from backend.types import Logits, ModelSpec, Request, Sampling, chain_parents

#: llama.cpp wants some; this one makes no token of the vocabulary, so nothing is merged.
MERGES = {"tokenizer.ggml.merges": ["! !"]}
TEMPLATE = {
    "tokenizer.chat_template": (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ eos_token }}{% endfor %}"
    )
}
#: What makes a Qwen3.5 of transformers that of tiny_gguf's SHAPES.
QWEN35 = {
    "model_type": "qwen3_5_text",
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "tie_word_embeddings": True,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 1.0,
        "mrope_section": [3, 3, 2],
    },
}
TOKENS = st.integers(3, 250)
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


@pytest.fixture(scope="module")
def exact(file: Path, one_thread: None) -> LlamaCppEngine:
    return opened(file, "gguf-exact")


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


def path_to(row: int, parents: Sequence[int]) -> list[int]:
    found: list[int] = []
    while row >= 0:
        found.insert(0, row)
        row = parents[row]
    return found


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def walked(
    request: pytest.FixtureRequest,
    exact: LlamaCppEngine,
    tmp_path_factory: pytest.TempPathFactory,
) -> LlamaCppEngine:
    """One whose layers all see the whole text, and one with sliding windows."""
    if request.param == "llama":
        return exact
    path = tmp_path_factory.mktemp("windows") / "tiny.gguf"
    write_shape(path, request.param, **MERGES)
    return opened(path, "gguf-exact")


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_row_is_bit_for_bit_what_single_steps_compute(
    walked: LlamaCppEngine, data: st.DataObject
) -> None:
    """Trees of any shape, rows kept and rejected between them, texts cut back, and moves to another
    cache, in any order.
    """
    cache, text = walked.cache(), list[int]()
    for _ in range(data.draw(st.integers(2, 6))):
        tokens = data.draw(st.lists(TOKENS, min_size=1, max_size=12))
        parents = [data.draw(st.integers(-1, i - 1)) for i in range(len(tokens))]
        rows = data.draw(st.permutations(range(len(tokens))))
        (logits,) = cache.run([NewRows(tokens, parents, rows)])
        row = data.draw(st.integers(-1, len(tokens) - 1))
        path = path_to(row, parents)
        if path:
            expected = alone(walked, text + [tokens[i] for i in path])
            assert np.array_equal(logits[rows.index(row)], expected)
        cache.keep(0, path)
        text += [tokens[i] for i in path]
        deed = data.draw(st.sampled_from(["go on", "rewind", "move", "grow"]))
        if deed == "rewind":
            length = data.draw(st.integers(0, len(text)))
            cache.rewind(0, length)
            del text[length:]
        elif deed == "grow":
            cache.reserve(FIRST_CELLS + 1)
        elif deed == "move" and not walked.copies:
            if text:
                with pytest.raises(DerbyError, match="sliding window"):
                    cache.export(0, len(text))
        elif deed == "move":
            length = data.draw(st.integers(0, len(text)))
            arrays = cache.export(0, length)
            cache.close()
            cache = walked.cache()
            cache.load(length, arrays)
            del text[length:]
    cache.close()


def test_rejected_rows_leave_no_gap_that_a_later_row_fills(exact: LlamaCppEngine) -> None:
    """Attention adds up in the order of the cells: filled gaps moved logits by 0.05."""
    session, text = exact.open(), list[int]()
    for i in range(8):
        session.forward([7, 20 + i], [-1, -1], ())
        session.keep([1])
        wide = session.forward([3, 50 + i, 9], [-1, 0, 1], range(3))
        session.keep(range(3))
        text += [20 + i, 3, 50 + i, 9]
        assert np.array_equal(wide[2], alone(exact, text))
    session.close()


def test_a_text_outgrows_its_context_and_loses_nothing(
    exact: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parked rows are cells as well: the text is laid anew before it is laid into a larger one."""
    monkeypatch.setattr("backend.engines.llamacpp.context.FIRST_CELLS", 256)
    session, text = exact.open(), list[int]()
    for i in range(100):
        logits = session.forward([9, i % 7, 11, 12, 13], [-1, -1, 1, -1, 2], range(5))
        session.keep([1, 2])
        text += [i % 7, 11]
    assert np.array_equal(logits[2], alone(exact, text))
    session.close()


def test_it_computes_what_transformers_computes_of_the_same_file(
    tmp_path: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys and values are half floats there, so logits of up to 6 differ in the third place."""
    import torch
    from transformers import AutoModelForCausalLM

    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))
    write_gguf(tmp_path / "tiny.gguf", "F16", **MERGES)
    write_gguf(tmp_path / "same.gguf", "F16")
    text = [5, 9, 11, 200, 7, 33, 2, 8, 99, 120]
    folder = gguf_folder(tmp_path / "same.gguf", print)
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_pretrained(folder)
        expected = model(torch.tensor([text])).logits[0, -1].numpy()
    engine = opened(tmp_path / "tiny.gguf")
    assert np.abs(alone(engine, text) - expected).max() < 0.01 * np.abs(expected).max()
    assert engine.capabilities.max_context == 256


def test_exact_rows_are_near_the_usual_ones(
    file: Path, exact: LlamaCppEngine, one_thread: None
) -> None:
    usual, text = opened(file), [5, 9, 11, 200, 7, 33]
    expected = alone(usual, text)
    assert np.abs(alone(exact, text) - expected).max() < 0.05 * np.abs(expected).max()


def test_its_tokenizer_is_the_files_own(exact: LlamaCppEngine, tmp_path: Path) -> None:
    own, text = exact.tokenizer, "a Überraschung\n\t\N{GRINNING FACE} 12"
    write_weights(tmp_path / "same.gguf", "F32", random_weights(), **TEMPLATE)
    tokenizer_from_gguf(read_header(tmp_path / "same.gguf").fields).save_pretrained(tmp_path)
    ours = HfTokenizer(tmp_path, frozenset({256}), 257)
    assert (own.vocab_size, own.eos_ids) == (257, ours.eos_ids)
    for chat, turns in ((False, ()), (True, ()), (True, (("user", "hi"), ("assistant", "so")))):
        assert own.encode(text, chat=chat, turns=turns) == ours.encode(text, chat=chat, turns=turns)
    tokens = own.encode_plain(text)
    assert tokens == ours.encode_plain(text)
    stream = own.stream()
    assert "".join([*map(stream.push, [*tokens, 256]), stream.flush()]) == text
    assert own.fingerprint == ours.fingerprint, "so that columns of two engines are compared"
    for token in range(257):
        assert own.piece(token) == ours.piece(token)
        assert own.extending(token) == ours.extending(token)


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
    with pytest.raises(DerbyError, match="has no GGUF file, and llama"):
        opened(tmp_path / "empty")
    with pytest.raises(DerbyError, match="gguf or gguf-exact, not 'int4': choose one"):
        opened(file, "int4")


def test_all_layers_go_to_a_gpu_where_one_is_named(
    file: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is needed: a library without one takes the number, and computes on the CPU."""
    with pytest.raises(DerbyError, match="no device 'GPU'; it has CPU"):
        open_llamacpp(ModelSpec(str(file), "llamacpp", "gguf", "GPU"), print)
    monkeypatch.setattr(engine_module, "devices", lambda: ("CPU", "GPU"))
    given = list[int]()
    load = engine_module.library().llama_model_load_from_file
    monkeypatch.setattr(
        engine_module.library(),
        "llama_model_load_from_file",
        lambda path, params: given.append(params.n_gpu_layers) or load(path, params),
        raising=False,
    )
    for device in ("CPU", "GPU"):
        open_llamacpp(ModelSpec(str(file), "llamacpp", "gguf", device), print)
    assert given == [0, -1]


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


def test_verify_leaves_out_what_it_cannot_run() -> None:
    """Columns with the trained draft failed there, so that every case was called unequal."""
    targets = {target.engine: target for target in TARGETS}
    left_out = {
        engine: {column.label for column in verified_columns() if not runs_on(column, target)}
        for engine, target in targets.items()
    }
    assert targets["llamacpp"].precision == "gguf-exact"
    assert left_out["torch"] == set()
    skipping = {"Layer skipping", "Layer skipping (k=3)"}
    assert left_out["openvino"] == skipping
    trained = {f"Speculative (k={k}, draft=trained)" for k in (1, 4)}
    beside = {"Speculative (k=6, draft=trained, beside=recycling)"}
    assert left_out["llamacpp"] == skipping | trained | beside


def test_nothing_names_it_where_it_is_not_installed() -> None:
    program = f"""
import sys
sys.modules[{PACKAGE!r}] = None
from backend.engines.registry import all_precisions, device_help, engine_help, precision_help
said = [*all_precisions(), device_help(), engine_help(), precision_help()]
assert "openvino" in str(said) and "llama" not in str(said) and "gguf" not in str(said), said
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_chains_are_padded_by_trees_as_elsewhere(exact: LlamaCppEngine) -> None:
    session = exact.open()
    logits = session.forward([5, 6, 7, 7], [-1, 0, -1, -1], (1, 0))
    session.keep([0, 1])
    assert np.array_equal(logits[0], alone(exact, [5, 6]))
    wide = session.forward(range(10, 30), chain_parents(20), range(20))
    session.keep(range(20))
    assert np.array_equal(wide[-1], alone(exact, [5, 6, *range(10, 30)]))
    session.close()


@pytest.fixture(scope="module", params=["lfm2", "qwen35"])
def hybrid(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, one_thread: None
) -> LlamaCppEngine:
    path = tmp_path_factory.mktemp("hybrid") / "tiny.gguf"
    write_shape(path, request.param, **MERGES)
    return opened(path, "gguf-exact")


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_hybrids_state_is_the_one_behind_its_text(
    hybrid: LlamaCppEngine, data: st.DataObject
) -> None:
    """Chains of which any row is the last one kept, texts cut anywhere, checkpoints, larger
    contexts, and moves to another cache, in any order.
    """
    cache, text = hybrid.cache(), list[int]()
    assert hybrid.capabilities.recurrent
    for _ in range(data.draw(st.integers(2, 7))):
        tokens = data.draw(st.lists(TOKENS, min_size=1, max_size=9))
        (logits,) = cache.run([NewRows(tokens, chain_parents(len(tokens)), range(len(tokens)))])
        row = data.draw(st.integers(0, len(tokens) - 1))
        assert np.array_equal(logits[row], alone(hybrid, text + tokens[: row + 1]))
        kept = data.draw(st.integers(0, len(tokens)))
        cache.keep(0, range(kept))
        text += tokens[:kept]
        deed = data.draw(st.sampled_from(["go on", "rewind", "checkpoint", "grow", "move"]))
        if deed == "rewind":
            cache.rewind(0, data.draw(st.integers(0, len(text))))
        elif deed == "checkpoint":
            cache.checkpoint(0)
        elif deed == "grow":
            cache.reserve(FIRST_CELLS + 1)
        elif deed == "move" and cache.checkpoints(0):
            length = data.draw(st.sampled_from(cache.checkpoints(0)))
            arrays = cache.export(0, length)
            cache.close()
            cache = hybrid.cache()
            cache.load(length, arrays)
        del text[cache.lengths[0] :]
    cache.close()


def test_room_for_a_text_and_a_checkpoint_of_it_is_made_beforehand(
    hybrid: LlamaCppEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A larger context was begun in the middle of a timed pass."""
    monkeypatch.setattr("backend.engines.llamacpp.context.FIRST_CELLS", 256)
    cache, made, text = hybrid.cache(), list[int](), 200
    cache.reserve(text)
    store: Any = cache._store
    begin = type(store)._begin

    def noted(self: Any, cells: int) -> None:
        made.append(cells)
        begin(self, cells)

    monkeypatch.setattr(type(store), "_begin", noted)
    for start in range(0, text, 50):
        tokens = [(start + i) % 50 for i in range(50)]
        cache.run([NewRows(tokens, chain_parents(50), ())])
        cache.keep(0, range(50))
        if start == 100:
            cache.checkpoint(0)
    cache.close()
    assert made == []


LINES = ("kv", "lookup:k=5", "lookahead:window=4,level=3,guesses=4", "speculative", "lookup:k=9")
GRAMMAR = ("kv:grammar=date", "lookup:grammar=date,k=4", "speculative:grammar=date")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_columns_keep_the_text_and_the_grammar(
    file: Path, one_thread: None, temperature: float
) -> None:
    columns = tuple(map(parse_column, (*LINES, *GRAMMAR)))
    request = Request("one two, one two, one", 24, Sampling(temperature, seed=5))
    target = ModelSpec(str(file), "llamacpp", "gguf-exact")
    board = board_after(columns, events_of(Race(request, columns, target)))
    assert {(score.state, score.message) for score in board.scores} == {("done", "")}
    tokens = [tuple(score.tokens) for score in board.scores]
    assert len(set(tokens[: len(LINES)])) == len(set(tokens[len(LINES) :])) == 1
    assert "by prompt lookup alone" in str(board.scores[3].decision)
    assert re.match(r"\d", board.scores[len(LINES)].text)


def test_columns_on_a_hybrid_keep_the_text(hybrid: LlamaCppEngine) -> None:
    columns = tuple(map(parse_column, ("kv", "lookup:k=5", "speculative", "lookup:k=1")))
    request = Request("one two, one two, one", 40, Sampling(0.3, seed=5), chat=False)
    board = board_after(columns, events_of(Race(request, columns, hybrid.spec)))
    assert {(score.state, score.message) for score in board.scores} == {("done", "")}
    assert len({tuple(score.tokens) for score in board.scores}) == 1
    rejected = board.scores[1].drafted - board.scores[1].accepted
    assert rejected > 0, "so that states were gone back to"


def test_a_hybrids_text_is_torchs(tmp_path: Path, one_thread: None) -> None:
    """The same weights as float32: keys and values are half floats here, so logits of up to 14
    differ in the fourth place. Of heads in the order of transformers they differ by 5.
    """
    import families
    import torch

    model = families.random_model(**{**families.RECURRENT["qwen3_5"], **QWEN35})
    write_shape(tmp_path / "tiny.gguf", "qwen35", qwen35_weights(model), **MERGES)
    text = [5, 9, 11, 200, 7, 33, 2, 8, 99, 120]
    engine = opened(tmp_path / "tiny.gguf")
    prompt = torch.tensor([text])
    with torch.inference_mode():
        expected = model(prompt).logits[0, -1].numpy()
        written = model.generate(prompt, do_sample=False, max_new_tokens=24, min_new_tokens=24)
    assert np.abs(alone(engine, text) - expected).max() < 1e-3 * np.abs(expected).max()
    session, own = engine.open(), list(text)
    logits = session.forward(text, chain_parents(len(text)), (len(text) - 1,))
    session.keep(range(len(text)))
    for _ in range(24):
        logits[0, families.END] = -np.inf  # as generate() has it
        own.append(int(logits[0].argmax()))
        logits = session.forward(own[-1:], [-1], (0,)).copy()
        session.keep([0])
    assert own == written[0].tolist()


@pytest.mark.parametrize("precision", ["gguf", "gguf-exact"])
def test_a_file_of_k_quants_runs(precision: str, tmp_path: Path, one_thread: None) -> None:
    """Q4_K_M mixes two formats. Their kernels compute rows alike, so `gguf-exact` takes them."""
    higher = dict.fromkeys(("attn_v", "ffn_down", "token_embd", "output"), "Q6_K")
    write_k_quants(tmp_path / "tiny.gguf", higher, "Q4_K", **MERGES)
    columns = tuple(map(parse_column, ("kv", "lookup:k=5", "lookup:k=9", LINES[2])))
    request = Request("one two, one two, one", 40, Sampling(0.3, seed=5), chat=False)
    target = ModelSpec(str(tmp_path / "tiny.gguf"), "llamacpp", precision)
    board = board_after(columns, events_of(Race(request, columns, target)))
    assert {(score.state, score.message) for score in board.scores} == {("done", "")}
    if precision == "gguf-exact":
        assert len({tuple(score.tokens) for score in board.scores}) == 1


@pytest.mark.parametrize(
    ("kind", "alike"),
    [("Q8_0", True), ("Q5_1", True), ("F32", False), ("F16", False), ("BF16", False)],
)
def test_exact_is_what_rows_are_or_a_sentence(
    kind: str, alike: bool, tmp_path: Path, one_thread: None
) -> None:
    """F16 and BF16 were found out by chance alone: the difference is seldom as large as what
    activations are rounded by. So was a Qwen3.5 in Q8_0 with two small matrices in F32: some rows
    differed, by 0.02.
    """
    write_weights(tmp_path / "tiny.gguf", kind, random_weights(), **MERGES)
    if alike:
        opened(tmp_path / "tiny.gguf", "gguf-exact")
        return
    with pytest.raises(DerbyError, match=f"weights are {kind} .*attn_q.weight.*: choose gguf, "):
        opened(tmp_path / "tiny.gguf", "gguf-exact")


def test_rows_are_compared_when_a_file_is_opened(
    file: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "FLOATING", {})
    write_weights(file.parent / "whole.gguf", "F32", random_weights(), **MERGES)
    with pytest.raises(DerbyError, match="otherwise beside 1 more, whatever is set: choose gguf"):
        opened(file.parent / "whole.gguf", "gguf-exact")


@pytest.mark.model
def test_the_built_in_model_runs_from_the_file_that_was_published(one_thread: None) -> None:
    files = model_files(BUILT_IN, print)
    texts = ("Hello  world\n\tx = 3.14", "naïve 漢字 \u200d", " a\r\n")
    ours = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
    target = ModelSpec(BUILT_IN, "llamacpp", "gguf-exact")
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
    assert [board.sameness(i) for i in (1, 2)] == ["same", "same"]
