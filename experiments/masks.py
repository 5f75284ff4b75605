"""What a grammar's masks cost: each shipped grammar, on the built-in and on a large vocabulary.

For scale: a published LALR implementation in pure Python takes 0.54 ms a mask for C and 0.44 ms for
SQL with 256,000 tokens; llama.cpp's own subset of C, 21 rules, takes 101 ms.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from backend.grammar.definition import definition_of
from backend.grammar.matchers import compile_matcher
from backend.grammar.slices import slices_of
from backend.grammar.sources import GrammarSource, shipped
from backend.models.files import BUILT_IN, model_files
from backend.text import HfTokenizer
from experiments.experiment import Experiment, Setup
from experiments.mask_texts import texts_of

if TYPE_CHECKING:
    from llguidance import LLTokenizer

#: Every mask is computed so often, by a fresh matcher each time; its median counts.
PASSES = 3
#: Positions of the longest text at which the naive checker tries every token.
NAIVE_POSITIONS = 2


@dataclass(frozen=True, slots=True)
class MaskTimes:
    """One grammar on one vocabulary, over its accept examples and the long text if it has one.

    rules: of its own file, terminals among them; 0 where it has none. Times are milliseconds:
    first is a text's first mask, mean to max are the later ones. naive is a mask by trying every
    token of the vocabulary in turn.
    """

    grammar: str
    rules: int
    vocabulary: int
    tokens: int
    compile_ms: float
    first_ms: float
    mean_ms: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    naive_ms: float


def time_masks(setup: Setup) -> list[MaskTimes]:
    """Time the masks of every shipped grammar along texts that it accepts."""
    from backend.grammar.vocabulary import build
    from experiments.big_vocabulary import big_tokenizer

    say = setup.say
    say("building two vocabularies")
    files = model_files(BUILT_IN, say)
    own = HfTokenizer(files.folder, files.eos_ids, files.vocab_size)
    vocabularies = (build(own).tokens, big_tokenizer(say))
    results: list[MaskTimes] = []
    for name, source in shipped().items():
        say(f"masks of {name}")
        texts = texts_of(name)
        suited = [each.with_slices(list(slices_of(source))) for each in vocabularies]
        results += [measure_grammar(source, texts, vocabulary) for vocabulary in suited]
    return results


def rule_count(source: GrammarSource) -> int:
    """Rules and terminals that a Lark file defines; 0 for another kind."""
    defined = re.compile(r"^[?!]?\w+(\.\d+|\[[^\]\n]*\])?\s*:", re.MULTILINE)
    return sum(1 for _ in defined.finditer(source.text)) if source.kind == "lark" else 0


def measure_grammar(
    source: GrammarSource, texts: Sequence[str], vocabulary: "LLTokenizer"
) -> MaskTimes:
    compiled, first, later = [], [], []
    for text in texts:
        tokens = vocabulary.tokenize_str(text)
        passes = [_timed(source, vocabulary, tokens) for _ in range(PASSES)]
        compiled.append(median(seconds for seconds, _ in passes))
        times = np.median([masks for _, masks in passes], axis=0)
        first.append(times[0])
        later += list(times[1:])
    longest = vocabulary.tokenize_str(max(texts, key=len))
    return MaskTimes(
        source.name,
        rule_count(source),
        vocabulary.vocab_size,
        len(first) + len(later),
        1e3 * median(compiled),
        1e3 * median(first),
        1e3 * float(np.mean(later)),
        1e3 * float(np.median(later)),
        1e3 * float(np.percentile(later, 99)),
        1e3 * max(later),
        1e3 * median(_naive(source, vocabulary, longest)),
    )


def _timed(
    source: GrammarSource, vocabulary: "LLTokenizer", tokens: Sequence[int]
) -> tuple[float, list[float]]:
    """Seconds to compile a fresh matcher, and for the mask before each token."""
    start = perf_counter()
    matcher = compile_matcher(definition_of(source), vocabulary)
    compiled = perf_counter() - start
    masks: list[float] = []
    for token in tokens:
        start = perf_counter()
        matcher.compute_bitmask()
        masks.append(perf_counter() - start)
        if matcher.try_consume_tokens([token]) != 1:
            raise RuntimeError(f"{source.name} rejects its text at {len(masks)}: {matcher}")
    return compiled, masks


def _naive(
    source: GrammarSource, vocabulary: "LLTokenizer", tokens: Sequence[int]
) -> Iterator[float]:
    """Seconds for a mask by asking about each token in turn, at some positions of a text."""
    matcher = compile_matcher(definition_of(source), vocabulary)
    every = sorted(set(range(vocabulary.vocab_size)) - set(vocabulary.eos_tokens))
    stops = [0, *(len(tokens) * i // (NAIVE_POSITIONS + 1) for i in range(1, NAIVE_POSITIONS + 1))]
    for done, stop in pairwise(stops):
        matcher.try_consume_tokens(list(tokens[done:stop]))
        start = perf_counter()
        for token in every:
            if matcher.try_consume_tokens([token]):
                matcher.rollback(1)
        yield perf_counter() - start


MASKS = Experiment(
    "masks",
    "what masks cost: every shipped grammar on two vocabularies",
    time_masks,
    lambda _setup: "masks alone, no model",
)
