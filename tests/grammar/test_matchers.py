"""The cache of compiled grammars gives what compiling would give, within its budget."""

import json

from llguidance import LLMatcher, LLParserLimits

from backend.grammar.matchers import MAX_COPIES, MatcherCache
from backend.grammar.vocabulary import build
from backend.text import ByteTokenizer

TOKENIZER = build(ByteTokenizer()).tokens


class Builder:
    """Compiles a grammar and counts how often."""

    def __init__(self, lark: str, fuel: int = 100_000) -> None:
        self.built = 0
        self._definition = json.dumps({"grammars": [{"lark_grammar": lark}]})
        self._fuel = fuel

    def __call__(self) -> LLMatcher:
        self.built += 1
        limits = LLParserLimits(step_lexer_fuel=self._fuel)
        return LLMatcher(TOKENIZER, self._definition, log_level=0, limits=limits)


def reads(matcher: LLMatcher, text: bytes) -> bool:
    return matcher.try_consume_tokens(list(text)) == len(text)


def test_every_matcher_stands_at_the_start_whatever_others_have_read() -> None:
    cache, build = MatcherCache(1000), Builder('start: "ab" | "ac"')
    first = cache.get("k", build, 10)
    assert reads(first, b"ab")
    second, third = cache.get("k", build, 10), cache.get("k", build, 10)
    assert reads(second, b"a")
    assert reads(third, b"ac")
    assert reads(second, b"b")
    assert build.built == 1


def test_the_least_recently_used_goes_once_the_budget_is_spent() -> None:
    cache = MatcherCache(100)
    a, b, c = Builder('start: "a"'), Builder('start: "b"'), Builder('start: "c"')
    cache.get("a", a, 50)
    cache.get("b", b, 50)
    cache.get("a", a, 50)
    cache.get("c", c, 50)
    assert reads(cache.get("a", a, 50), b"a")
    assert reads(cache.get("b", b, 50), b"b")
    assert (a.built, b.built, c.built) == (1, 2, 1)


def test_what_is_larger_than_the_budget_is_built_every_time_and_displaces_nothing() -> None:
    cache, large, small = MatcherCache(100), Builder('start: "a"'), Builder('start: "b"')
    cache.get("small", small, 60)
    for _ in range(2):
        assert reads(cache.get("large", large, 101), b"a")
    cache.get("small", small, 60)
    assert (large.built, small.built) == (2, 1)


def test_a_grammar_that_does_not_compile_is_not_kept() -> None:
    cache, build = MatcherCache(100), Builder("start: x")
    assert cache.get("k", build, 1).is_error()
    assert cache.get("k", build, 1).is_error()
    assert build.built == 2


def test_a_copy_that_fails_takes_no_later_one_along() -> None:
    """llguidance's copies share a lexer: one that hit a limit made all copies refuse every text."""
    text = 'start: "x" /[0-9]*/ | "a" A\nA: /(a|aa|aaa){500}/'
    cache, build = MatcherCache(100), Builder(text, fuel=10_000)
    first = cache.get("k", build, 1)
    while not first.is_error():
        first.compute_bitmask()
        first.try_consume_tokens([ord("a")])
    assert reads(cache.get("k", build, 1), b"x1")
    assert build.built == 2


def test_an_entry_is_built_anew_after_a_number_of_copies() -> None:
    cache, build = MatcherCache(100), Builder('start: "a"')
    for _ in range(MAX_COPIES):
        cache.get("k", build, 1)
    assert build.built == 1
    assert reads(cache.get("k", build, 1), b"a")
    assert build.built == 2
