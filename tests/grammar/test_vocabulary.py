"""Grammars bind whatever tokenizers spell texts in bytes; of others one sentence says why not."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from lib import compile_grammar
from small_tokenizer import TOKENS, saved, small_tokenizer

from backend.decoding.clock import Clock
from backend.decoding.loop import Parts, decode
from backend.decoding.sampling import Sampler
from backend.drafters.draft_length import DraftLength
from backend.drafters.prompt_lookup import PromptLookup
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.events import Finished, Step
from backend.grammar.grammars import Vetting
from backend.grammar.sandbox.parent import Sandbox
from backend.grammar.sources import GrammarSource
from backend.text import HfTokenizer
from backend.types import Proposal, Request

REGEX = GrammarSource("regex", "a+b?", "test")


def spelled(tokenizer: HfTokenizer, tokens: Sequence[int]) -> str:
    stream = tokenizer.stream()
    return "".join(map(stream.push, tokens))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("eos", [True, False])
def test_a_grammar_binds_a_tokenizer_with_or_without_an_end_or_a_known_class(
    tmp_path: Path, eos: bool, known: bool
) -> None:
    """A model whose tokenizer has no end token was an internal error in grammar columns, for
    llguidance must have one; it goes by one that stands for nothing in the model's vocabulary.
    """
    tokenizer = small_tokenizer(tmp_path, eos=eos, known=known)
    constraint = compile_grammar(REGEX, tokenizer)
    assert constraint.masks_along(Proposal()).allowed.nonzero()[1].tolist() == [1, 4]
    constraint.advance([1])
    ends = [0] if eos else []
    assert constraint.masks_along(Proposal()).allowed.nonzero()[1].tolist() == [*ends, 1, 2, 4]
    # Rows behind a drafted token after which nothing can follow must have something to sample.
    masks = constraint.masks_along(Proposal.chain([2])).allowed
    assert masks.any(axis=1).all()
    constraint.advance([2])
    assert constraint.finished()
    with closing(Sandbox()) as sandbox:
        Vetting(sandbox).vet(REGEX, tokenizer)


@pytest.mark.parametrize("drafted", [False, True])
def test_a_text_without_an_end_token_ends_with_its_grammar(tmp_path: Path, drafted: bool) -> None:
    tokenizer, engine = small_tokenizer(tmp_path, eos=False), FakeEngine(vocab_size=16)
    source = GrammarSource("regex", "(a|b|c){7}", "test")
    request = Request("any", 40)
    parts = Parts(engine.open(), tokenizer, Sampler(request.sampling), Clock())
    parts.constraint = compile_grammar(source, tokenizer)
    if drafted:
        parts.drafter = PromptLookup(DraftLength(4), 1, 1)
    events = list(decode(0, [1, 2, 3, 1, 2, 3], request, parts))
    tokens = [token for event in events if isinstance(event, Step) for token in event.tokens]
    assert len(spelled(tokenizer, tokens)) == 7
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == "end of text"


@pytest.mark.parametrize("model", ["words", "pieces"])
def test_a_tokenizer_that_hides_its_bytes_is_one_sentence(tmp_path: Path, model: str) -> None:
    """llguidance cannot tell what such tokens stand for: its ValueError was an internal error in
    the column, and in the sandbox "did not start (ValueError)".
    """
    from tokenizers import Tokenizer, decoders, models

    ids = {token: i for i, token in enumerate([*TOKENS, "?"])}
    made: Any = Tokenizer(models.WordLevel(ids, "?"))
    if model == "pieces":
        made = Tokenizer(models.WordPiece(vocab=ids, unk_token="?"))  # noqa: S106 (no password)
        made.decoder = decoders.WordPiece()
    tokenizer = saved(made, tmp_path)
    with pytest.raises(DerbyError, match="does not say which bytes a token stands for"):
        compile_grammar(REGEX, tokenizer)
    with closing(Sandbox()) as sandbox, pytest.raises(DerbyError, match="does not say which bytes"):
        Vetting(sandbox).vet(REGEX, tokenizer)


def test_the_end_that_a_tokenizer_lacks_may_lie_behind_the_last_logit(tmp_path: Path) -> None:
    """Where logits were as many as tokens, "vocab size too small" refused every grammar."""
    made = small_tokenizer(tmp_path, eos=False)
    tokenizer = HfTokenizer(tmp_path, frozenset(), len(made.fast))
    constraint = compile_grammar(REGEX, tokenizer)
    assert constraint.masks_along(Proposal()).allowed.nonzero()[1].tolist() == [1, 4]
    constraint.advance([1, 2])
    assert constraint.finished()


def test_a_grammar_binds_a_unigram_tokenizer_without_bytes(tmp_path: Path) -> None:
    """llguidance knows no decoder Metaspace: such tokenizers, as XLM-R's, were refused."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pieces = ["<unk>", "<end>", "a", "b", "▁", "▁a", "▁b", "ab"]
    made: Any = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], 0, False))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken("<end>", special=True)])
    tokenizer = saved(made, tmp_path)
    constraint = compile_grammar(GrammarSource("regex", " ?a+ b", "test"), tokenizer)
    allowed = [pieces[i] for i in constraint.masks_along(Proposal()).allowed.nonzero()[1]]
    assert allowed == ["a", "▁", "▁a"]
    constraint.advance([5, 2, 6])
    assert constraint.finished()


def test_the_tokenizer_itself_is_not_changed(tmp_path: Path) -> None:
    tokenizer = small_tokenizer(tmp_path, eos=False)
    before = tokenizer.fast.backend_tokenizer.to_str()
    compile_grammar(REGEX, tokenizer)
    assert tokenizer.fast.backend_tokenizer.to_str() == before
    assert len(tokenizer.fast) == len(TOKENS)
