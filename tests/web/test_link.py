"""A link holds a race's settings, and fills in the form with them."""

from dataclasses import replace
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recordings import race_of

from backend.errors import DerbyError
from backend.grammar.sources import GrammarSource
from backend.strategies.column import parse_column
from backend.types import ModelSpec, Request, Sampling
from backend.web.form import read_race, usable
from backend.web.link import LONGEST, form_of, link, read_link, settings_of
from backend.web.offer import Offer, offer_of

OFFER = Offer(offer_of(["fake"]).runtimes, ("fake-loop",))
RECORD = race_of("kv lookup:k=3")
USUAL = {
    "prompt": "",
    "lineup": "kv",
    "max_new_tokens": 8,
    "temperature": 0.5,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "seed": 0,
    "stop": "",
    "ignore_eos": False,
    "chat": True,
    "context": 0,
    "heal": True,
    "thinking": "",
    "top": 0,
    "shift": False,
    "measure": False,
    "model": "0",
    "model.hub": "",
    "engine": "fake",
    "precision": "fp32",
    "device": "CPU",
    "grammar.kind": "lark",
    "grammar.text": "",
}


@given(
    st.text(min_size=1, max_size=99).filter(str.strip),
    st.integers(1, 99),
    st.builds(
        Sampling,
        st.sampled_from([0.0, 0.7]),
        st.integers(0, 9),
        seed=st.integers(0, 99),
        min_p=st.sampled_from([0.0, 0.1]),
        repetition_penalty=st.sampled_from([1.0, 1.2]),
    ),
    st.booleans(),
    st.booleans(),
    st.lists(st.sampled_from(["\n\n", "end", "a&b=c", "\t"]), max_size=2).map(tuple),
    st.integers(0, 5),
)
def test_the_form_asks_for_the_very_same_race_again(
    prompt: str,
    tokens: int,
    sampling: Sampling,
    ignore_eos: bool,
    chat: bool,
    stop: tuple[str, ...],
    top: int,
) -> None:
    request = Request(prompt, tokens, sampling, chat, stop, top=top, ignore_eos=ignore_eos)
    own = GrammarSource("regex", "a+", "my own")
    columns = (*RECORD.columns, parse_column("grammar:grammar=own", own))
    query = link(settings_of(request, columns, RECORD.target))
    settings = read_link(query)
    assert settings is not None
    race = read_race({**USUAL, "temperature": 0.0, **form_of(settings, OFFER)}, OFFER)
    assert (race.request, race.columns, race.target) == (request, columns, RECORD.target)


def test_what_is_as_usual_is_not_said() -> None:
    said = parse_qs(link(settings_of(RECORD.request, RECORD.columns, RECORD.target)))
    assert set(said) == {
        *("?prompt", "columns", "max_new_tokens", "seed", "model", "engine", "precision", "device")
    }
    assert said["columns"] == ["kv", "lookup:k=3"]


def test_a_link_may_be_written_by_hand_and_says_as_little_as_one_likes() -> None:
    settings = read_link("?prompt=Why%3F&columns=kv&columns=lookup&__theme=dark")
    assert settings is not None
    form = usable(form_of(settings, OFFER), USUAL, OFFER)
    assert form == USUAL | {"prompt": "Why?", "lineup": "kv\nlookup"}
    for query in ("", "?", "?__theme=dark", "?a=b&c"):
        assert read_link(query) is None


def test_settings_that_are_too_long_make_no_link_and_other_links_are_refused() -> None:
    long = replace(RECORD.request, prompt="a" * LONGEST)
    assert link(settings_of(long, RECORD.columns, RECORD.target)) == ""
    for query, said in (
        (f"?prompt={'a' * LONGEST}", "8,000 characters: shorten it"),
        ("?top_k=many", "'top_k' is 'many'; it must be a whole number"),
        ("?chat=perhaps", "must be true or false"),
    ):
        with pytest.raises(DerbyError, match=said):
            read_link(query)


def test_a_model_that_is_not_offered_is_left_out() -> None:
    settings = settings_of(RECORD.request, RECORD.columns, ModelSpec("/srv/secret", "fake"))
    assert "model" not in form_of(settings, OFFER)
