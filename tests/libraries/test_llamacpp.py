"""Columns of llama.cpp's own server, on a tiny file of a family whose GGUF only it reads."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import families
import gguf
import numpy as np
import psutil
import pytest
from race_runs import board_after, events_of, until

from backend.events import Event, Served, Step
from backend.grammar.sources import GrammarSource
from backend.libraries import library, llamacpp
from backend.racing.hosts import Host
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Score
from backend.strategies.column import Column, parse_column
from backend.types import ModelSpec, Request, Sampling

ROOT = Path(__file__).parents[2]
SERVER = "backend.libraries.llamacpp"

WIDTH, HEAD, HEADS, KV_HEADS, INNER, LAYERS = 64, 16, 4, 2, 96, 2

#: A tiny Gemma 3, by the writer's names.
FACTS = {
    "context_length": 512,
    "embedding_length": WIDTH,
    "feed_forward_length": INNER,
    "block_count": LAYERS,
    "head_count": HEADS,
    "head_count_kv": KV_HEADS,
    "key_length": HEAD,
    "value_length": HEAD,
    "layer_norm_rms_eps": 1e-6,
    "rope_freq_base": 10000.0,
    "sliding_window": 32,
    "tokenizer_model": "gpt2",
    "tokenizer_pre": "smollm",
    "token_types": [1] * families.END + [3],
    "token_merges": ["! !"],  # some are wanted; this one makes no token of the vocabulary
    "eos_token_id": families.END,
    "chat_template": "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}",
}
SHAPES = {
    "attn_q": (HEADS * HEAD, WIDTH),
    "attn_k": (KV_HEADS * HEAD, WIDTH),
    "attn_v": (KV_HEADS * HEAD, WIDTH),
    "attn_output": (WIDTH, HEADS * HEAD),
    "ffn_gate": (INNER, WIDTH),
    "ffn_up": (INNER, WIDTH),
    "ffn_down": (WIDTH, INNER),
    **dict.fromkeys(("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"), (WIDTH,)),
    **dict.fromkeys(("attn_q_norm", "attn_k_norm"), (HEAD,)),
}


def write_gguf(path: Path) -> Path:
    """Write it with random weights, a token a byte."""
    vocabulary = families.byte_tokenizer().get_vocab()
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    for name, value in FACTS.items():
        getattr(writer, f"add_{name}")(value)
    draw = np.random.default_rng(3)
    shapes = {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in SHAPES.items()}
    shapes |= {"token_embd": (families.VOCABULARY, WIDTH), "output_norm": (WIDTH,)}
    for name, shape in shapes.items():
        weight = draw.normal(0, 0.15, shape) if len(shape) > 1 else np.ones(shape)
        writer.add_tensor(f"{name}.weight", weight.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that wait for one another would make tests beside others slow."""
    monkeypatch.setattr(llamacpp, "threads", lambda: 1)


def servers(worker: psutil.Process) -> list[psutil.Process]:
    """Those that a process has started and that run."""
    every = psutil.process_iter(["ppid", "cmdline"])
    ours = (each for each in every if each.info["ppid"] == worker.pid)
    return [each for each in ours if SERVER in (each.info["cmdline"] or ())]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    until(lambda: not servers(psutil.Process()))


def raced(file: Path, request: Request, *columns: str | Column) -> tuple[list[Event], list[Score]]:
    """The events and the scores of a race on the file."""
    chosen = tuple(parse_column(c) if isinstance(c, str) else c for c in columns)
    events = events_of(Race(request, chosen, ModelSpec(str(file))))
    return events, board_after(chosen, events).scores


def test_drafting_writes_the_plain_text_and_its_counts_add_up(file: Path) -> None:
    drafting = ("spec=ngram-simple,k=1", "spec=ngram-mod,k=3", f"draft={file},k=4")
    columns = ("llamacpp", *(f"llamacpp:{settings}" for settings in drafting))
    events, scores = raced(file, Request("Hello there", 96, ignore_eos=True), *columns)
    assert {score.message for score in scores} == {""}
    assert len(scores[0].text) >= 96
    assert {score.text for score in scores} == {scores[0].text}
    for index in range(len(columns)):
        steps = [e for e in events if isinstance(e, Step) and e.column == index]
        assert sum(len(step.origins) for step in steps) == 96
        assert all(step.seconds["total"] >= 0 for step in steps)
        drafted, accepted = sum(s.drafted for s in steps), sum(s.accepted for s in steps)
        assert (0 < accepted <= drafted) if index else (drafted == accepted == 0)
        *_, served = (e for e in events if isinstance(e, Served) and e.column == index)
        assert served.clock == "own"
        assert served.prompt_tokens == len("[user]Hello there")


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ("spec=draft-eagle3,draft=./d.gguf,k=3", ["DRAFT_EAGLE3"]),
        ("spec=draft-dflash,draft=./d.gguf,k=3", ["DRAFT_DFLASH"]),
        ("spec=draft-mtp,k=3", ["DRAFT_MTP"]),
        ("spec=draft-mtp,draft=./d.gguf,k=3", ["DRAFT_MTP"]),
        ("spec=ngram-mod,draft=./d.gguf,k=3", ["DRAFT_SIMPLE", "NGRAM_MOD"]),
    ],
)
def test_a_draft_is_what_llama_cpp_takes_it_for(settings: str, kinds: list[str]) -> None:
    column = parse_column(f"llamacpp:{settings}")
    params = llamacpp.parameters(
        llamacpp.server_flags("./m.gguf", Request("Hi"), column.settings())
    )
    assert [kind.name.partition("_TYPE_")[2] for kind in params.speculative.types] == kinds
    draft = params.speculative.draft
    assert (draft.n_max, draft.mparams.path) == (3, "./d.gguf" if "draft=" in settings else "")


@pytest.mark.parametrize(
    ("kind", "grammar", "text"),
    [
        ("gbnf", r'root ::= "\u0041BC" [~~]{2} [---] [&&]', "ABC~~-&"),
        ("lark", 'start: "xy" tail\ntail: /z{3}!/', "xyzzz!"),
        ("regex", "xyz{3}! \n", "xyzzz! "),
        ("json_schema", '{"const": "xyzzz!"}', '"xyzzz!"'),
    ],
)
def test_every_kind_of_grammar_is_obeyed(file: Path, kind: str, grammar: str, text: str) -> None:
    source = GrammarSource(kind, grammar, "own")  # pyright: ignore[reportArgumentType]
    column = parse_column("llamacpp:grammar=own", source)
    (score,) = raced(file, Request("Hello there", 32), column)[1]
    assert (score.message, score.text) == ("", text)


def test_it_samples_as_the_request_says(file: Path) -> None:
    def text(*sampling: float, stop: tuple[str, ...] = ()) -> str:
        request = Request("Hello there", 40, Sampling(*sampling), stop=stop, ignore_eos=True)  # pyright: ignore[reportArgumentType]
        (score,) = raced(file, request, "llamacpp")[1]
        assert not score.message
        return score.text

    greedy, drawn = text(), text(1.5, 0, 1.0, 7)
    assert drawn != greedy
    assert text(1.5, 0, 1.0, 7) == drawn != text(1.5, 0, 1.0, 8)
    for limited in ((1.5, 1), (1.5, 0, 0.01), (1.5, 0, 1.0, 7, 1.0)):
        assert text(*limited) == greedy, "one token is left to draw from"
    assert len(set(text(0.0, 0, 1.0, 0, 0.0, 10.0))) > len(set(greedy)), "it repeats itself less"
    assert text(stop=(greedy[9:12],)) == greedy[: greedy.index(greedy[9:12])]


@pytest.mark.parametrize("steps", [0, 20])
def test_a_stop_leaves_no_server(file: Path, steps: int) -> None:
    events: list[Event] = []
    column = parse_column("llamacpp")
    race = Race(Request("Hello there", 400, ignore_eos=True), (column,), ModelSpec(str(file)))
    Host(LoadedModels()).run(race, events.append, lambda: len(events) > steps)
    assert board_after((column,), events).scores[0].state == "stopped"


@pytest.mark.model
def test_a_stop_does_not_wait_for_a_long_prompt() -> None:
    """Nothing is written meanwhile that could be refused."""
    deadline = time.monotonic() + 3  # of the 15 s that it takes
    race = Race(Request("word " * 4000, 9), (parse_column("llamacpp"),))
    Host(LoadedModels()).run(race, lambda _: None, lambda: time.monotonic() > deadline)


def test_a_server_ends_with_a_killed_worker(file: Path) -> None:
    """It would compute on, unseen, for as long as the machine runs."""
    program = f"""
import time
from backend.libraries.library import Chunk
from backend.libraries.llamacpp import open_model
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

def emit(part):
    if isinstance(part, Chunk):
        print("writes", flush=True)
        time.sleep(600)

model = open_model(ModelSpec({str(file)!r}, "llamacpp", "gguf"), print)
model.answer(Request("Hello there", 400), parse_column("llamacpp").settings(), emit)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "writes\n"
        (server,) = servers(psutil.Process(worker.pid))
        worker.kill()
    assert not psutil.wait_procs([server], timeout=5)[1]


def test_what_cannot_be_had_is_one_sentence(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(file.read_bytes()[:20_000])
    (damaged,) = raced(cut, Request("Hello"), "llamacpp")[1]
    assert "llama.cpp cannot load" in damaged.message
    assert "fetch the file again" in damaged.message
    wrong = parse_column("llamacpp:grammar=own", GrammarSource("lark", "start: nothing", "own"))
    (unbound,) = raced(file, Request("Hello"), wrong)[1]
    assert "cannot be followed (at 1(" in unbound.message
    (draftless,) = raced(file, Request("Hello"), "llamacpp:spec=draft-eagle3")[1]
    assert "add draft=FILE.gguf" in draftless.message
    (ours,) = raced(file, Request("Hello"), "kv")[1]
    assert "is a GGUF file, which llama.cpp runs: choose its column, -c llamacpp" in ours.message
    monkeypatch.setattr(library, "find_spec", lambda _: None)
    (missing,) = raced(file, Request("Hello"), "llamacpp")[1]
    assert "pip install -r requirements-libraries.txt" in missing.message
