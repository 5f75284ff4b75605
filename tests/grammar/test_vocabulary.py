"""Grammars bind whatever tokenizers spell texts in bytes; of others one sentence says why not."""

from pathlib import Path
from typing import Any

import pytest
from grammar_texts import compile_grammar
from small_tokenizer import TOKENS, saved, small_tokenizer

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource, shipped
from backend.types import Proposal

REGEX = GrammarSource("regex", "a+b?", "test")


@pytest.mark.parametrize("known", [True, False])
def test_a_grammar_binds_a_tokenizer_of_a_known_class_or_not(tmp_path: Path, known: bool) -> None:
    constraint = compile_grammar(REGEX, small_tokenizer(tmp_path, known=known))
    assert constraint.masks_along(Proposal()).nonzero()[1].tolist() == [1, 4]
    constraint.advance([1])
    assert constraint.masks_along(Proposal()).nonzero()[1].tolist() == [0, 1, 2, 4]
    # Rows behind a drafted token after which nothing can follow must have something to sample.
    assert constraint.masks_along(Proposal.chain([2])).any(axis=1).all()
    constraint.advance([2])
    assert constraint.finished()


def test_a_tokenizer_without_an_end_or_that_hides_its_bytes_is_one_sentence(tmp_path: Path) -> None:
    """llguidance cannot tell what such tokens stand for."""
    from tokenizers import Tokenizer, models

    with pytest.raises(DerbyError, match="no end"):
        compile_grammar(REGEX, small_tokenizer(tmp_path, eos=False))
    ids = {token: i for i, token in enumerate([*TOKENS, "?"])}
    with pytest.raises(DerbyError, match="takes no grammar"):
        compile_grammar(REGEX, saved(Tokenizer(models.WordLevel(ids, "?")), tmp_path))


@pytest.mark.parametrize("special", [False, True])
def test_an_added_token_is_its_text_unless_it_is_special(tmp_path: Path, special: bool) -> None:
    """The shipped grammar of tool calls forced a spelling of <tool_call> that no caller writes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    built: Any = Tokenizer(models.BPE({text: i for i, text in enumerate(["<eos>", *letters])}, []))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    added = ["<tool_call>", "</tool_call>", "na\u00efve"]
    built.add_tokens([AddedToken(text, special=special, normalized=False) for text in added])
    built.add_special_tokens([AddedToken("</think>", special=True, normalized=False)])
    tokenizer = saved(built, tmp_path, width=300)
    ids = tokenizer.fast.convert_tokens_to_ids([*added, "</think>"])

    call = '\n{"name": "set_timer", "arguments": {"minutes": 1, "label": null}}\n'
    constraint = compile_grammar(shipped()["tool_call"], tokenizer)
    assert constraint.masks_along(Proposal())[0, ids].tolist() == [
        not special, False, not special, True,
    ]  # fmt: skip
    if special:
        return
    constraint.advance(tokenizer.encode(f"na\u00efve<tool_call>{call}"[:-1], chat=False))
    assert list(constraint.forced(9)) == tokenizer.encode("\n</tool_call>", chat=False)
    constraint.advance(tokenizer.encode("\n</tool_call>", chat=False))
    assert constraint.expected() == ""
    # The tag that ends a model's thinking is one wherever a grammar begins behind it.
    behind = compile_grammar(REGEX, tokenizer, "</think>")
    behind.advance(tokenizer.encode("na\u00efve a</think>", chat=False))
    letter = tokenizer.encode("a", chat=False)
    assert behind.masks_along(Proposal()).nonzero()[1].tolist() == letter
    behind.advance(letter)
    assert behind.text() == "a"
