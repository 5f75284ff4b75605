"""Recurrent layers: one computation at any width of a pass, whose state is found behind any row."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import families
import numpy as np
import pytest
import torch

from backend.engines.base import Session
from backend.engines.torch.engine import TorchEngine, open_torch
from backend.engines.torch.recurrence.convolution import convolve, window_after
from backend.engines.torch.recurrence.memory import Written, corrections, memory_after, recall
from backend.types import Logits, ModelSpec, chain_parents

pytestmark = families.OLD_NAMES

#: One of each kind of recurrence; the others run under the mark.
QUICK = ("lfm2", "qwen3_5", "mamba2")

#: Between passes of other widths, on logits of some 5: what rounding comes to in sharp models.
#: transformers' own full pass and its own single steps are as far apart.
ROUNDING = 3e-4

#: Random text, longer than a prefill pass. Behind the first 128 rows or more, Nemotron-H's and
#: Zamba2's reference adds up the states of chunks wrongly; its single steps agree with ours there.
TEXT = np.random.default_rng(1).integers(0, 256, 80).tolist()


class Opened:
    """A family's model as we run it, and as transformers does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.engine = self.open()
        self.reference = self.load(torch.float32)

    def open(self, precision: str = "fp32") -> TorchEngine:
        engine = open_torch(ModelSpec(str(self.folder), "torch", precision), print)
        torch.set_num_threads(1)  # two would wait for each other longer than they compute
        return engine

    def load(self, dtype: torch.dtype) -> Any:
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.folder, dtype=dtype).eval()


def _names() -> Iterable[Any]:
    for name in families.RECURRENT:
        yield name if name in QUICK else pytest.param(name, marks=pytest.mark.thorough)


@pytest.fixture(scope="module", params=_names())
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Opened:
    return Opened(families.make(request.param, tmp_path_factory.mktemp("recurrent")))


def computed(session: Session, tokens: Sequence[int], widths: Iterator[int]) -> Logits:
    """The logits of all rows, computed and kept in passes of these widths."""
    rows, done = [], 0
    while done < len(tokens):
        new = tokens[done : done + next(widths)]
        rows.append(session.forward(new, chain_parents(len(new)), range(len(new))).copy())
        session.keep(range(len(new)))
        done += len(new)
    return np.concatenate(rows)


def repeated(width: int) -> Iterator[int]:
    while True:
        yield width


def prefilled() -> Iterator[int]:
    yield 64
    yield from repeated(1)


@pytest.mark.parametrize("widths", ["1", "4", "8", "prefill"])
def test_passes_of_any_width_give_what_the_reference_gives_without_a_cache(
    opened: Opened, widths: str
) -> None:
    """transformers' layers begin anew in a pass over several rows behind others."""
    with torch.inference_mode():
        want = opened.reference(input_ids=torch.tensor([TEXT]), use_cache=False).logits[0].numpy()
    passes = prefilled() if widths == "prefill" else repeated(int(widths))
    got = computed(opened.engine.open(), TEXT, passes)
    np.testing.assert_allclose(got, want, atol=ROUNDING, rtol=0)
    alone = computed(opened.engine.open(), TEXT, repeated(1))
    np.testing.assert_allclose(got, alone, atol=ROUNDING, rtol=0)
    assert np.abs(want - want.mean(0)).max() > 1  # the text matters


@pytest.mark.parametrize("kept", [0, 1, 5, 7, 8])
def test_rejected_rows_leave_no_trace(opened: Opened, kept: int) -> None:
    drafted, plain = opened.engine.open(), opened.engine.open()
    for session in (drafted, plain):
        computed(session, TEXT[:40], prefilled())
    wrong = [*TEXT[40 : 40 + kept], *(token ^ 1 for token in TEXT[40 + kept : 48])]
    drafted.forward(wrong, chain_parents(8), range(8))
    drafted.keep(range(kept))
    if kept:
        computed(plain, TEXT[40 : 40 + kept], repeated(8))
    after = (computed(one, TEXT[40 + kept : 60], repeated(4)) for one in (drafted, plain))
    np.testing.assert_allclose(*after, atol=ROUNDING, rtol=0)


def test_a_cache_is_read_and_written_as_it_is(opened: Opened) -> None:
    session, other = opened.engine.open(), opened.engine.open()
    computed(session, TEXT[:40], prefilled())
    session.forward(TEXT[40:48], chain_parents(8), range(8))
    session.keep(range(5))
    other.load(session.tokens, session.export(45))
    want, got = (computed(one, TEXT[45:60], repeated(4)) for one in (session, other))
    np.testing.assert_array_equal(want, got)


def test_a_text_begins_anew(opened: Opened) -> None:
    session = opened.engine.open()
    want = computed(session, TEXT[:20], repeated(4))
    session.truncate(0)
    np.testing.assert_array_equal(computed(session, TEXT[:20], repeated(4)), want)


def test_half_precision_is_near(opened: Opened) -> None:
    """A state is float32 whatever the weights are."""
    got = computed(opened.open("bf16").open(), TEXT[:64], repeated(8))
    reference = opened.load(torch.bfloat16)
    with torch.inference_mode():
        half = reference(input_ids=torch.tensor([TEXT[:64]]), use_cache=False).logits[0]
        want = opened.reference(input_ids=torch.tensor([TEXT[:64]]), use_cache=False).logits[0]
    off = np.abs(got - want.numpy()).mean()
    assert off < 1.5 * np.abs(half.float().numpy() - want.numpy()).mean() + 1e-3


def test_a_model_that_is_opened_twice_computes_as_it_did(opened: Opened) -> None:
    """It was bound once already; caches of transformers' own are its own layers' business."""
    model: Any = opened.load(torch.float32)
    usual = copy.deepcopy(model)
    spec, tokenizer = opened.engine.spec, opened.engine.tokenizer
    want = computed(opened.engine.open(), TEXT[:20], repeated(4))
    for _ in range(2):
        engine = TorchEngine(spec, model, tokenizer, 256)
        np.testing.assert_array_equal(computed(engine.open(), TEXT[:20], repeated(4)), want)
    ids = torch.tensor([TEXT[:20]])
    with torch.inference_mode():
        torch.testing.assert_close(
            model(input_ids=ids, use_cache=True).logits, usual(input_ids=ids, use_cache=True).logits
        )


def test_a_state_that_was_not_kept_is_not_taken_up(opened: Opened) -> None:
    store: Any = opened.engine.store()
    with pytest.raises(RuntimeError, match="no state behind row 3"):
        store._recurrent.take_up(3)


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_a_memory_is_what_its_rows_make_of_it_one_by_one(rows: int) -> None:
    """Decays as differences of sums lost four digits behind a row that had forgotten all."""
    b, h, keys, values = 1, 3, 4, 5
    memory = random(b, h, keys, values)
    key, offered, query = (random(b, h, rows, size) for size in (keys, values, keys))
    key = torch.nn.functional.normalize(key, dim=-1)
    strength = 2 * random(b, h, rows).sigmoid()
    decay = -random(b, h, rows).exp() / 8
    decay[:, :, ::3] *= 3000
    for deltas in (True, False):
        given = Written(decay, key, offered)
        written = corrections(memory, given, strength) if deltas else given
        read = recall(memory, written, query)
        state = memory.double()
        for row in range(rows):
            k, u = key[:, :, row].double(), offered[:, :, row].double()
            state = decay[:, :, row, None, None].double().exp() * state
            if deltas:
                u = strength[:, :, row, None] * (u - torch.einsum("bhkv,bhk->bhv", state, k))
            state = state + torch.einsum("bhk,bhv->bhkv", k, u)
            want = torch.einsum("bhkv,bhk->bhv", state, query[:, :, row].double())
            torch.testing.assert_close(read[:, :, row], want.float(), atol=2e-5, rtol=1e-5)
            behind = memory_after(memory, written, row + 1)
            torch.testing.assert_close(behind, state.float(), atol=2e-5, rtol=1e-5)


def test_a_convolution_goes_on_behind_any_row() -> None:
    rows, weight, bias = random(1, 12, 6), random(6, 4), random(6)
    padded = torch.nn.functional.pad(rows.mT, (3, 0))
    want = torch.nn.functional.conv1d(padded, weight[:, None], bias, groups=6).mT
    start = torch.zeros(1, 3, 6)
    first, joined = convolve(start, rows[:, :8], weight, bias)
    torch.testing.assert_close(first, want[:, :8])
    for kept in range(1, 9):
        window = window_after(joined, 4, kept)
        after, _ = convolve(window, rows[:, kept:], weight, bias)
        torch.testing.assert_close(after, want[:, kept:])
        np.testing.assert_array_equal(after[:, : 8 - kept], first[:, kept:])
