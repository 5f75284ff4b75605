"""A grammar's masks, cuts, forced tokens and end are those of its language, spelled out by brute
force; behind a model's thinking, too; and every strategy writes the same under them.
"""

import itertools
import json

import numpy as np
import pytest
from grammar_texts import compile_grammar, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engines.fake import FakeEngine
from backend.grammar.constraint import GrammarConstraint, closing_tag
from backend.grammar.sources import GrammarSource, shipped
from backend.grammar.vocabulary import vocabulary_of
from backend.racing import column
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.tokenizer import ByteTokenizer, HfTokenizer
from backend.types import ModelSpec, Proposal, Request, Sampling

EOS = ByteTokenizer.EOS
#: Wider than the byte vocabulary, as padded logits are; token 299 is a second end of the text.
WIDE = ByteTokenizer(300)
WIDE.eos_ids = frozenset({299, EOS})

#: A grammar whose language can be listed, so that plain string functions are the oracle.
WORDS = ("ab", "abc", "b", "cab")
LISTED = GrammarSource("lark", 'start: W ("," W)?\nW: "ab" | "abc" | "b" | "cab"\n', "listed")
TEXTS = frozenset(WORDS) | {f"{a},{b}" for a, b in itertools.product(WORDS, WORDS)}
PREFIXES = sorted({text[:n] for text in TEXTS for n in range(len(text) + 1)})
UNFINISHED = [p for p in PREFIXES if any(t.startswith(p) and t != p for t in TEXTS)]


def spelled(text: str) -> list[int]:
    return list(text.encode())


def legal(path: list[int]) -> bool:
    """The oracle: may these tokens stand at the start of a text of LISTED?"""
    body = path[: next((i for i, t in enumerate(path) if t in WIDE.eos_ids), len(path))]
    text = "".join(map(chr, body))
    if len(path) > len(body):
        return len(path) == len(body) + 1 and text in TEXTS
    return text in PREFIXES


def after(prefix: str, source: GrammarSource = LISTED) -> GrammarConstraint:
    constraint = compile_grammar(source, WIDE)
    constraint.advance(spelled(prefix))
    return constraint


def path_to(proposal: Proposal, node: int) -> list[int]:
    return [*path_to(proposal, proposal.parents[node]), proposal.tokens[node]] if node >= 0 else []


def root_mask(constraint: GrammarConstraint) -> np.ndarray:
    return constraint.masks_along(Proposal())[0]


@st.composite
def proposals(draw: st.DrawFn) -> Proposal:
    """Random trees with scratch rows; tokens are mostly of LISTED's alphabet."""
    drafted, scratch = draw(st.integers(0, 8)), draw(st.integers(0, 4))
    size, chain = drafted + scratch, draw(st.booleans())
    letters = st.sampled_from([*b"abcabc,,b", EOS, 299, 298, 1])
    tokens = draw(st.lists(letters, min_size=size, max_size=size))
    parents = [i - 1 if chain else draw(st.integers(-1, i - 1)) for i in range(drafted)]
    for i in range(drafted, size):
        above = draw(st.integers(drafted - 1, i - 1))
        parents.append(above if above >= drafted else -1)
    return Proposal(tuple(tokens), tuple(parents), scratch, draw(st.integers(0, scratch)))


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(UNFINISHED), proposals())
def test_cut_and_masks_equal_brute_force_on_random_trees(prefix: str, proposal: Proposal) -> None:
    constraint = after(prefix)
    before = root_mask(constraint)
    cut = constraint.cut(proposal)
    rows = range(proposal.drafted)
    accepted = [i for i in rows if legal([*spelled(prefix), *path_to(proposal, i)])]
    assert (cut is proposal) == (len(accepted) == proposal.drafted)
    assert [path_to(cut, i) for i in range(cut.drafted)] == [path_to(proposal, i) for i in accepted]
    assert (cut.scratch, cut.feedback) == (proposal.scratch, proposal.feedback)
    for k in range(1, 1 + proposal.scratch):
        old, new = len(proposal.tokens) - k, len(cut.tokens) - k
        assert path_to(cut, new) == path_to(proposal, old)
        assert all(p < i for i, p in enumerate(cut.parents))

    masks = constraint.masks_along(cut)
    for row in range(1 + cut.drafted):
        path = [*spelled(prefix), *path_to(cut, row - 1)]
        if row and path[-1] in WIDE.eos_ids:
            assert set(np.flatnonzero(masks[row])) == WIDE.eos_ids
        else:
            expected = {t for t in range(WIDE.vocab_size) if legal([*path, t])}
            assert set(np.flatnonzero(masks[row])) == expected

    np.testing.assert_array_equal(root_mask(constraint), before)
    text = min(text for text in TEXTS if text.startswith(prefix))
    constraint.advance(spelled(text[len(prefix) :]))
    assert set(np.flatnonzero(root_mask(constraint))) & WIDE.eos_ids == WIDE.eos_ids


@pytest.mark.parametrize("prefix", PREFIXES)
def test_forced_is_the_only_continuation_cut_to_the_budget(prefix: str) -> None:
    only = prefix
    while only in UNFINISHED and only not in TEXTS:
        following = {text[len(only)] for text in TEXTS if text != only and text.startswith(only)}
        if len(following) > 1:
            break
        only += following.pop()
    expected = tuple(spelled(only[len(prefix) :]))
    for budget in (0, 1, 9):
        forced = after(prefix).forced(budget)
        assert tuple(forced) == expected[:budget]


def test_finished_exactly_when_only_the_end_may_follow() -> None:
    for text in PREFIXES:
        assert after(text).finished() == (text not in UNFINISHED)
    ended = after("ab")
    assert not ended.finished()
    ended.advance([EOS, 97])
    assert ended.finished()
    assert ended.text() == "ab"
    assert not ended.forced(8)
    assert ended.cut(Proposal.chain(spelled(","))).tokens == ()
    assert set(np.flatnonzero(root_mask(ended))) == WIDE.eos_ids


def test_misuse_is_an_exception_not_a_wrong_mask() -> None:
    with pytest.raises(ValueError, match="cut first"):
        after("").masks_along(Proposal.chain(spelled("zz")))
    with pytest.raises(ValueError, match="committed token"):
        after("").advance(spelled("z"))


@pytest.fixture(scope="module")
def built_in() -> HfTokenizer:
    from backend.models.files import model_files

    files = model_files("built-in", print)
    return HfTokenizer(files.folder, files.eos_ids, files.vocab_size)


@pytest.mark.parametrize("name", ["person", "sql", "list"])
def test_masks_of_a_real_vocabulary_allow_what_spells_a_prefix(
    name: str, built_in: HfTokenizer
) -> None:
    """Checked by spelling tokens for the grammar over bytes. What it forces is allowed, too."""
    source, vocabulary = shipped()[name], vocabulary_of(built_in)
    tokens = built_in.encode(examples(name).accept[0], chat=False)
    constraint = compile_grammar(source, built_in)
    for draft in map(Proposal.chain, (tokens, constraint.forced(64))):
        assert constraint.cut(draft) is draft
    masks = constraint.masks_along(Proposal.chain(tokens))
    assert masks[-1, list(built_in.eos_ids)].all()
    rng = np.random.default_rng(0)
    for row in range(0, len(masks), 4):
        reference = compile_grammar(source, ByteTokenizer())
        reference.advance(list(vocabulary.decode_bytes(tokens[:row])))
        for token in map(int, rng.choice(built_in.vocab_size, 100)):
            chain = Proposal.chain(list(vocabulary.decode_bytes([token])))
            fits = not vocabulary.is_special_token(token) and reference.cut(chain) is chain
            assert masks[row, token] == fits or token in built_in.eos_ids


ANSWER = GrammarSource(
    "json_schema",
    json.dumps({"type": "array", "items": {"enum": ["yes", "no"]}, "minItems": 2, "maxItems": 4}),
    "answer",
)
ENGINE = FakeEngine()
PIECE = ENGINE.tokenizer.piece


def closed(pieces: list[str], closing: str) -> int:
    """Tokens up to the one with which the tag is complete."""
    return next(n for n in range(1, 1 + len(pieces)) if closing in "".join(pieces[:n]))


@pytest.mark.parametrize(("temperature", "at", "length"), [(0.0, 5, 2), (0.9, 0, 1), (0.9, 9, 3)])
def test_columns_with_a_grammar_agree_behind_thinking_and_only_the_answer_is_judged(
    monkeypatch: pytest.MonkeyPatch, temperature: float, at: int, length: int
) -> None:
    """A tag of one or several tokens, taken from what the model writes by itself."""

    def raced(closing: str, *names: str) -> Scoreboard:
        monkeypatch.setattr(column, "closing_tag", lambda *_: closing)
        columns = tuple(
            parse_column(name).with_settings({} if name == "kv" else {"grammar": ANSWER})
            for name in names
        )
        board = Scoreboard(columns)
        request = Request("Who?", 200, Sampling(temperature, seed=4), chat=False)
        Race(request, columns, ModelSpec("fake", "fake")).run(
            LoadedModels(), board.add, lambda: False
        )
        return board

    free = raced("", "kv").scores[0].tokens
    closing = "".join(map(PIECE, free[at : at + length]))
    board = raced(closing, "kv", "grammar", "lookup", "speculative", "lookahead")
    grammar, *others = board.scores[1:]
    end = closed(list(map(PIECE, free)), closing)
    assert grammar.tokens[:end] == free[:end]
    assert grammar.reason == "end of text"
    assert json.loads(bytes(t for t in grammar.tokens[end:] if t < 256))
    for score in others:
        assert score.tokens == grammar.tokens
    assert {score.judged and score.judged.verdict for score in board.scores[1:]} == {"valid"}
    unclosed = raced("</never>", "grammar").scores[0]
    assert unclosed.expected == "'</never>'"


@pytest.mark.parametrize(
    ("prompt", "closing"),
    [
        ("a <think>\n", "</think>"),
        ("<seed:think>", "</seed:think>"),
        ("[THINK]", "[/THINK]"),
        ("<thinking> ", "</thinking>"),
        ("<think>\n\n</think>\n\n", ""),
        ("<think> a", ""),
        ("I think>", ""),
        ("", ""),
    ],
)
def test_an_opened_tag_is_seen(prompt: str, closing: str) -> None:
    assert closing_tag(list(prompt.encode()), PIECE) == closing
