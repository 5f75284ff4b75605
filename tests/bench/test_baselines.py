"""The comparisons with other loops count what happens, on both sides."""

import copy
from collections.abc import Sequence
from io import StringIO
from typing import Any

import pytest
import torch
from rich.console import Console
from transformers import AutoConfig, AutoModelForCausalLM

from backend.bench.baselines import (
    ASSISTED,
    BITS,
    DRAFT_K,
    GROUP,
    LOOKUP_K,
    PEERS,
    TARGET,
    Answer,
    Block,
    assisted_by,
    assisted_result,
    generated,
    our_answer,
    peer_result,
    rounded,
)
from backend.bench.experiment import Plan
from backend.bench.prompts import PROMPTS
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.racing.models import LoadedModels
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request

FAKE = ModelSpec("fake-loop", "fake")
EOS = 60
IDS = [5, 9, 11, 5, 9, 11, 5, 7, 3]


def build() -> Any:
    """A small Llama, sure of nothing, whose greedy text wanders and at last runs in a loop."""
    torch.manual_seed(7)
    config = AutoConfig.for_model(
        "llama",
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=EOS,  # prompt lookup of transformers fails without one
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.08)
    return model.eval()


MODEL = build()


def greedy(count: int) -> list[int]:
    """The text by definition: every token is the best one after all tokens before it."""
    text = list(IDS)
    with torch.inference_mode():
        for _ in range(count):
            text.append(int(MODEL(torch.tensor([text]), use_cache=False).logits[0, -1].argmax()))
    assert EOS not in text
    return text[len(IDS) :]


def looked_up(text: Sequence[int], k: int, ngram: int) -> list[int]:
    """What followed the first earlier occurrence of the text's longest known ending."""
    for n in range(ngram, 0, -1):
        for start in range(len(text) - n):
            if list(text[start : start + n]) == list(text[-n:]):
                return list(text[start + n : start + n + k])
    return []


def lookup_blocks(text: list[int], k: int, ngram: int) -> tuple[list[int], list[int]]:
    """How many tokens each pass brings if candidates are looked up, and how many rows it takes."""
    blocks, rows, done = list[int](), list[int](), 0
    while done < len(text):
        # A pass brings a token of its own: where one is left, nothing is looked up.
        candidates = looked_up(IDS + text[:done], k, ngram) if done + 1 < len(text) else []
        hits = 0
        while hits < len(candidates) and text[done + hits : done + hits + 1] == [candidates[hits]]:
            hits += 1
        blocks.append(min(hits + 1, len(text) - done))
        rows.append(len(candidates) + 1)
        done += hits + 1
    return blocks, rows


@pytest.mark.parametrize(("k", "ngram"), [(1, 1), (4, 2), (6, 3), (9, 3)])
@pytest.mark.parametrize("count", [1, 2, 20, 41])
def test_passes_of_prompt_lookup_are_those_that_its_text_calls_for(
    k: int, ngram: int, count: int
) -> None:
    """Asked for 41 tokens, transformers writes 45 where a block runs past the end."""
    text = greedy(count)
    blocks, rows = lookup_blocks(text, k, ngram)
    options = {"prompt_lookup_num_tokens": k, "max_matching_ngram_size": ngram}
    answer = generated(MODEL, IDS, count, options)
    assert answer.tokens == tuple(text)
    assert (len(answer.blocks[0].tokens), answer.passes) == (blocks[0], len(blocks) - 1)
    assert answer.rows == sum(rows[1:])
    if answer.passes:
        assert answer.tokens_per_forward == sum(blocks[1:]) / len(blocks[1:])


@pytest.mark.parametrize("k", [1, 3, 5])
def test_an_assistant_always_drafts_k_tokens(k: int) -> None:
    """transformers reads K from the draft's own configuration (20 by default, and a stop at the
    first token of which the draft is less than 40 % sure), and lets generate()'s pass unheeded.
    """
    options = assisted_by(copy.deepcopy(MODEL), k)
    count = 3 * (k + 1) + 1
    answer = generated(MODEL, IDS, count, options)
    assert answer.tokens == tuple(greedy(count))
    # The draft is the target itself: all that is drafted is right.
    assert len(answer.blocks[0].tokens) == k + 1
    assert answer.passes == 3
    assert answer.rows == 2 * (k + 1) + 1


@pytest.mark.parametrize("count", [2, 90])
def test_our_passes_and_rows_are_the_engines(count: int) -> None:
    engines = LoadedModels()
    engine = engines.get(FAKE, lambda _: None)
    assert isinstance(engine, FakeEngine)
    prompt = engine.tokenizer.encode("x" * 100, chat=True)
    answer = our_answer(
        "x" * 100, parse_column("lookup:k=4,ngram=1,branches=1"), count, FAKE, engines
    )
    prefill = -(-len(prompt) // 64)
    assert len(answer.blocks[0].tokens) == 1
    assert answer.passes == engine.forwards - prefill
    assert answer.rows == engine.rows - len(prompt)
    assert answer.later == len(answer.tokens) - 1
    assert answer.tpot > 0


def answer(later: int, passes: int, seconds: float, first_block: int = 1) -> Answer:
    """An answer whose passes bring equally many tokens, of two rows each."""
    first = Block(tuple(range(first_block)), 100.0, 99)
    each = later // max(passes, 1)
    return Answer(
        (
            first,
            *(
                Block((7,) * each, 100.0 + seconds * (i + 1) / passes, rows=2)
                for i in range(passes)
            ),
        )
    )


def test_ratios_are_above_one_where_ours_is_ahead() -> None:
    pairs = [
        (answer(12, 3, 6.0), answer(12, 6, 12.0)),  # twice the tokens a pass, twice as fast
        (answer(12, 4, 36.0), answer(12, 4, 12.0)),  # as many a pass, a third as fast
        (answer(12, 3, 12.0), answer(12, 4, 12.0)),
        (answer(9, 3, 1.0), answer(0, 0, 0.0, first_block=4)),  # one block says nothing
    ]
    result = assisted_result("ours", 5, pairs)
    assert result.forward_ratio == pytest.approx((4 / 3, 1.0, 2.0))
    assert result.speed_ratio == pytest.approx((1.0, 1 / 3, 2.0))
    assert result.per_forward == (4.0, 3.0)
    assert result.tpot == (1000.0, 1000.0)
    assert (result.prompts, result.equal) == (4, 3)
    with pytest.raises(DerbyError, match="up to 6 tokens"):
        assisted_result("ours", 5, pairs[3:])
    peer = peer_result("theirs", pairs)
    assert (peer.ratio, *peer.spread) == pytest.approx((1.0, 1 / 3, 2.0))
    assert (peer.ours, peer.theirs) == (1.0, 1.0)
    assert (peer.prompts, peer.equal) == (4, 3)


def test_answers_of_unequal_length_are_compared_over_the_same_tokens() -> None:
    """A side whose later tokens were slower was said to be slower, though the other side had ended
    before those.
    """
    steady = answer(8, 8, 8.0)
    slower_later = Answer((*steady.blocks, Block((7,), 200.0)))
    assert peer_result("theirs", [(slower_later, steady)]).ratio == 1.0
    assert assisted_result("ours", 5, [(steady, slower_later)]).speed_ratio == (1.0, 1.0, 1.0)


def test_an_engine_without_a_loop_of_its_own_is_one_sentence() -> None:
    with pytest.raises(DerbyError, match="openvino and torch have one"):
        PEERS.run(Plan(PROMPTS[:1], (), Request("-", 8), FAKE, LoadedModels(), lambda _: None))


def test_a_rounded_group_has_few_values_and_keeps_its_range() -> None:
    weights = torch.randn(6, 3 * GROUP, generator=torch.Generator().manual_seed(1))
    weights[2, :GROUP] = 0.25  # a group without any range
    result = rounded(weights)
    assert result.shape == weights.shape
    groups = zip(result.view(-1, GROUP), weights.view(-1, GROUP), strict=True)
    for got, was in groups:
        step = (was.max() - was.min()) / (2**BITS - 1)
        assert got.unique().numel() <= 2**BITS
        torch.testing.assert_close(got.aminmax(), was.aminmax())
        assert (got - was).abs().max() <= step / 2 + 1e-6


@pytest.mark.model
def test_all_comparisons_with_transformers_on_the_built_in_model() -> None:
    said = list[str]()
    plan = Plan(PROMPTS[1:2], (), Request("-", 12), TARGET, LoadedModels(), said.append)
    results = ASSISTED.run(plan)
    lookup, auto, speculative = results
    for result, k in ((lookup, LOOKUP_K), (auto, LOOKUP_K), (speculative, DRAFT_K)):
        assert (result.k, result.prompts, result.equal) == (k, 1, 1)
        assert all(1 <= value <= k + 1 for value in (*result.per_forward, *result.rows))
    # Both ask the same draft after the same text: what is accepted differs by the first block's.
    assert speculative.rows[0] > 4
    assert speculative.rows[1] > 4
    assert sum(sentence.startswith("prompt 1 of 1") for sentence in said) == 3
    console = Console(width=120, record=True, file=StringIO())
    console.print(ASSISTED.table(plan, results))
    assert str(TARGET) in console.export_text()
