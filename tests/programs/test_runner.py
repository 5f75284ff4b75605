"""Programs: fixed text is fed, not generated; slots hold what they allow; every strategy fills them
alike; and what a model has read is the text that is shown.
"""

import itertools
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from grammar_texts import accepts
from race_runs import board_after, events_of
from small_tokenizer import sentencepiece_like, small_tokenizer

from backend.decoding.clock import Clock
from backend.decoding.loop import Parts, TokenSequence
from backend.decoding.sampling import Sampler
from backend.decoding.seams import Constraint
from backend.engines.fake import FakeEngine
from backend.engines.session import Session
from backend.events import Decided, Event, Fed, Filled, Step
from backend.grammar.constraint import GrammarCompiler
from backend.grammar.sources import GrammarSource
from backend.programs import runner
from backend.programs.parser import Gen, parse_program
from backend.programs.runner import run_program, slot_grammar, slot_grammars
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.result import result_of
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import parse_column
from backend.types import Layers, ModelSpec, Request, Sampling

FAKE = ModelSpec("fake", "fake")
COLD = Sampling(0.0)
ONE_TOKEN = ModelSpec("fake-one-token", "fake")
BUILT_IN = ModelSpec()
PROGRAM = """A form.
Colour: {{select "colour" "red|green|blue"}}
Number: {{gen "n" regex="[0-9]+" max_tokens=5}}0 or {{select "p" "x|xy|xyx"}}y{{n}}
Two: {{gen "d" regex="[ab]+" max_tokens=9}}{{gen "d" regex="[ab]+" max_tokens=9}}b
Word: {{gen "w" max_tokens=7 stop="e" stop=" "}}
Word: {{gen "w" max_tokens=7 stop="e" stop=" "}}
Word: {{gen "w" max_tokens=7 stop="e" stop=" "}}
Again {{colour}} and {{w}}: {{gen "last" max_tokens=4 temperature=1.5}}"""
#: Loads the built-in model once.
MODELS = LoadedModels(idle_warm_up=True)
COLUMNS = ("kv", "stateless", "speculative:k=3", "lookahead", "lookup")


def play(
    program: str,
    columns: Sequence[str] = COLUMNS,
    target: ModelSpec = FAKE,
    **options: object,
) -> tuple[Scoreboard, list[Event]]:
    chosen = tuple(map(parse_column, columns))
    request = Request(program, 64, **options)  # type: ignore[arg-type]
    models = MODELS if target == BUILT_IN else LoadedModels()
    events = [  # each alone, else Stateless ends at the photo finish
        replace(event, column=index) if hasattr(event, "column") else event
        for index, column in enumerate(chosen)
        for event in events_of(Race(request, (column,), target), models)
    ]
    board = board_after(chosen, events)
    assert not [s.message for s in board.scores if s.state == "failed"]
    return board, events


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("target", [FAKE, ONE_TOKEN], ids=str)
def test_every_strategy_fills_the_slots_alike(target: ModelSpec, temperature: float) -> None:
    columns = COLUMNS if target == FAKE else ("kv", "stateless")
    sampling = Sampling(temperature, seed=5)
    board, _ = play(PROGRAM, columns, target, sampling=sampling)
    first = play(PROGRAM, ("kv",), FAKE, sampling=sampling)[0].scores[0]
    assert first.reason == "end of program"
    for score in board.scores:
        assert (score.values, score.text, score.tokens) == (first.values, first.text, first.tokens)


def test_the_end_of_a_value_that_shares_a_token_with_the_stop_string_is_shown_once() -> None:
    """The token `")` ends a value and begins the fixed text."""
    program = 'print("hello{{gen "a" max_tokens=8 stop=")"}}) # done{{gen "b" max_tokens=2}}'
    for score in play(program, ("kv", "lookup"), BUILT_IN)[0].scores:
        a, b = score.values["a"], score.values["b"]
        assert score.text == f'print("hello{a}) # done{b}'


def test_values_are_what_the_slots_allow_and_the_text_holds_them() -> None:
    score = play(PROGRAM, ("kv",))[0].scores[0]
    values = score.values
    assert values["colour"] in ("red", "green", "blue")
    assert re.fullmatch("[0-9]+", str(values["n"]))
    assert values["p"] in ("x", "xy", "xyx")
    assert all(re.fullmatch("[ab]+", value) for value in values["d"])
    assert len(values["w"]) == 3
    assert not any("e" in word or " " in word for word in values["w"])
    expected = f"A form.\nColour: {values['colour']}\nNumber: {values['n']}0 or {values['p']}y"
    expected += f"{values['n']}\nTwo: {''.join(values['d'])}b\n"
    expected += "".join(f"Word: {word}\n" for word in values["w"])
    expected += f"Again {values['colour']} and {values['w'][-1]}: {values['last']}"
    assert score.text == expected
    assert json.loads(json.dumps(values)) == values


def test_a_program_is_one_from_its_first_slot_on() -> None:
    """Also where nothing is given in front of that."""
    board, _ = play('Say one.{{assistant}}{{gen "a" max_tokens=4}}', ("kv",))
    assert result_of(board).unit == "character"


def test_each_slot_follows_from_the_text_before_it() -> None:
    """The fake model hashes its prefix: a token too many or too few in the context would show."""
    score = play('Say: {{gen "a" max_tokens=5}} and {{gen "b" max_tokens=5}}', ("kv",))[0].scores[0]
    engine = FakeEngine()
    text = b"Say: "
    for name, after in (("a", b" and "), ("b", b"")):
        for byte in str(score.values[name]).encode():
            assert byte == int(engine.logits(list(text)).argmax())
            text += bytes([byte])
        text += after


def test_fixed_text_is_fed_and_not_generated() -> None:
    board, events = play(PROGRAM, ("kv", "stateless"))
    spans = [span for e in events if isinstance(e, Fed) and e.column == 0 for span in e.spans]
    fed = sum(len(text) for _, text in spans)  # a token a character
    sampled = sum(len(e.tokens) for e in events if isinstance(e, Step) and e.column == 0)
    assert fed > sampled == len(board.scores[0].tokens)
    # With the cache every token is computed once; without it, once more for every later one.
    assert board.scores[0].rows <= len(board.scores[0].text) + sampled
    assert board.scores[1].rows > 2 * board.scores[0].rows


def test_a_program_is_given_room_for_all_that_it_may_write(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that grows within a race is captured anew on its clock."""
    opened, opening = list[tuple[int, Session]](), FakeEngine.open

    def noted(engine: FakeEngine, rows: int = 0, layers: Layers = ()) -> Session:
        session = opening(engine, rows, layers)
        opened.append((rows, session))
        return session

    monkeypatch.setattr(FakeEngine, "open", noted)
    columns = ("kv", "lookup", "lookahead", "speculative:draft=fake-draft")
    play(PROGRAM, columns)
    assert len(opened) == len(columns) + 1
    assert all(0 < session.length <= rows <= 4 * session.length for rows, session in opened)


@pytest.mark.parametrize("slot", ['gen "a" max_tokens=4', 'select "a" "yes|no"'])
def test_a_program_may_begin_with_a_slot(slot: str) -> None:
    """It begins as any text does."""
    board, _ = play(f"{{{{{slot}}}}} is it.", COLUMNS)
    plain = board.scores[0]
    assert plain.text == f"{plain.values['a']} is it."
    if slot.startswith("gen"):
        engine, text = FakeEngine(), [256]
        for _ in range(4):
            text.append(int(engine.logits(text).argmax()))
        assert plain.tokens == text[1:]
    for score in board.scores:
        assert (score.values, score.tokens) == (plain.values, plain.tokens)


@pytest.mark.parametrize(
    ("regex", "text"),
    [(r"[0-9]\/[0-9]", "1/2"), ("[0-9]/[0-9]", "1/2"), (r"a\\/b", "a\\/b"), ("a\nb", "a\nb")],
)
def test_a_slot_s_regex_may_hold_any_character(regex: str, text: str) -> None:
    source = slot_grammar(Gen("g", regex=regex))
    assert source is not None
    assert accepts(source, text)


def test_a_user_turn_goes_through_the_chat_template() -> None:
    score = play('Hello{{assistant}}Sure: {{gen "a" max_tokens=3}}', ("kv",))[0].scores[0]
    assert score.prompt_tokens == len(b"User: Hello\nAnswer: ")
    assert score.text.startswith("Sure: ")


def test_a_full_context_ends_a_program() -> None:
    score = play(PROGRAM, ("kv",), context=48)[0].scores[0]
    assert score.reason == "context full"


def test_a_column_s_grammar_binds_every_slot_that_has_none_from_its_start() -> None:
    program = '{{gen "a" max_tokens=12}}, {{select "b" "x|y"}}, {{gen "a" max_tokens=12}}.'
    score = play(program, ("grammar:grammar=date",))[0].scores[0]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date in score.values["a"])
    assert len(score.values["a"]) == 2
    assert score.values["b"] in ("x", "y")


def run_constrained(folder: Path, text: str, regex: str, sampling: Sampling) -> list[Event]:
    """A program's events under a column's own grammar, over tokens of several letters."""
    tokenizer, program = small_tokenizer(folder), parse_program(text)
    own, compiler = GrammarSource("regex", regex, "own"), GrammarCompiler(tokenizer)
    compiler.prepare(own, *slot_grammars(program))
    session = FakeEngine(vocab_size=16).open()
    parts = Parts(session, tokenizer, Sampler(sampling), Clock())
    request = Request("any", 8, sampling)
    return list(run_program(0, program, [], request, parts, compiler.compile, own))


@pytest.mark.parametrize("slot", ['gen "v" max_tokens=5', 'select "v" "bc|cc"'])
def test_healing_goes_together_with_a_grammar(tmp_path: Path, slot: str) -> None:
    text = f"ca{{{{{slot}}}}}a{{{{{slot}}}}}"
    for seed in range(8):
        events = run_constrained(tmp_path, text, "[bc]c", Sampling(0.9, seed=seed))
        values = [event.value for event in events if isinstance(event, Filled)]
        assert len(values) == 2
        assert set(values) <= {"bc", "cc"}


@pytest.mark.parametrize(
    ("regex", "behind"),
    [
        ("[ab]+", "c"),
        ("[abc]+", "ca"),  # what its value may contain
        ("[abc]+", "abc"),  # which is one token
        ("(a|ab|abc)", "bc"),
        ("a[bc]*", "a"),
        ("(ab|c)+", "bb"),
    ],
)
def test_a_slot_ends_where_the_text_behind_it_may_begin(
    tmp_path: Path, regex: str, behind: str
) -> None:
    """The first place at which the value is whole and that text follows; or its limit."""
    ended = 0
    for seed, rest in itertools.product(range(12), ("", '{{gen "w" max_tokens=1}}')):
        program = f'ba{{{{gen "v" max_tokens=9}}}}{behind}{rest}'
        events = run_constrained(tmp_path, program, regex, Sampling(1.0, seed=seed))
        value, *others = (event.value for event in events if isinstance(event, Filled))
        text = "".join(text for e in events for _, text in getattr(e, "spans", []))
        assert text == f"ba{value}{behind}{''.join(others)}"
        first = next(
            i
            for i in range(len(value) + 1)
            if f"{value}{behind}".startswith(behind, i)
            and (i == len(value) or re.fullmatch(regex, value[:i]))
        )
        assert first == len(value)
        ended += bool(re.fullmatch(regex, value))
        tokens = sum(len(event.tokens) for event in events if isinstance(event, Step))
        assert re.fullmatch(regex, value) or tokens >= 9
    assert ended > 12


def test_what_the_text_behind_forces_is_given_text(tmp_path: Path) -> None:
    """One token says that the value has ended, and none if it can only end."""
    for regex, choices in (("[bc]", 0), ("[bc]+", 1)):
        events = run_constrained(tmp_path, f'cb{{{{gen "v" regex="{regex}"}}}}abca', "b", COLD)
        (value,) = [event.value for event in events if isinstance(event, Filled)]
        origins = [origin for e in events if isinstance(e, Step) for origin in e.origins]
        assert origins == ["sampled"] * (len(value) + choices)


def test_free_text_ends_where_the_text_behind_it_begins_or_at_its_own_stop_string() -> None:
    for stop, behind in itertools.product(("", ' stop="e"'), ("a", "ab", "e")):
        score = play(f'Say {{{{gen "v" max_tokens=400{stop}}}}}{behind}', ("kv",))[0].scores[0]
        ends = "e" if stop else behind
        assert ends not in str(score.values["v"])
        assert score.reason == "end of program"


def test_a_long_option_is_chosen_whole() -> None:
    options = [letter * 300 for letter in "xy"]
    score = play(f'Say {{{{select "a" "{"|".join(options)}"}}}}!', ("kv",))[0].scores[0]
    assert score.values["a"] in options


def test_healed_text_is_not_lost_with_a_limit(tmp_path: Path) -> None:
    """A grammar lets the fixed text be spelled anew, in more tokens than a slot may have."""
    texts = set[str]()
    for seed in range(12):
        program = 'cab{{gen "v" max_tokens=1}}!'
        events = run_constrained(tmp_path, program, "[bc]+", Sampling(2.0, seed=seed))
        text = "".join(text for e in events for _, text in getattr(e, "spans", []))
        (value,) = [event.value for event in events if isinstance(event, Filled)]
        assert text == f"cab{value}!"
        texts.add(text)
    assert len(texts) > 1


@pytest.mark.parametrize("text", ["ab a{0} b{1}ab {2}a b", "{0}a{1} ab", " a{0}"])
def test_a_program_reads_the_text_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """Tokenizers like Llama 2's put a space in front of a text, and take it from what they show."""
    tokenizer = sentencepiece_like(tmp_path)
    engine = FakeEngine(vocab_size=tokenizer.vocab_size)
    slots = [f'{{{{gen "{name}" max_tokens=6 stop="b"}}}}' for name in "xyz"]
    program = parse_program(text.format(*slots))
    for seed in range(20):
        request = Request("any", 8, Sampling(0.9, seed=seed))
        parts = Parts(engine.open(), tokenizer, Sampler(request.sampling), Clock())
        monkeypatch.undo()
        context = TokenSequence(tokenizer.encode("", chat=False), parts)
        monkeypatch.setattr(runner, "TokenSequence", lambda *_args, context=context: context)
        prompt, board = tokenizer.encode("", chat=False), Scoreboard((parse_column("kv"),))
        for event in run_program(0, program, prompt, request, parts, lambda *_: Constraint()):
            board.add(event)
        stream = tokenizer.stream()
        text_read = "".join(map(stream.push, context.tokens)) + stream.flush()
        # Such a tokenizer puts a space in front of a text that nothing precedes.
        assert text_read in (board.scores[0].text, f" {board.scores[0].text}")


@pytest.mark.model
def test_healing_lets_the_model_spell_as_it_has_learnt() -> None:
    """Cut off before the space, the model always answers happy: it knows these words with the space
    in front of them only.
    """
    items = ["I love this film.", "The soup was cold.", "What a lovely day!", "My train was late."]
    text = "Is the sentence happy or sad?\n\nSentence: The sun shines and I am glad.\n"
    text += "Feeling: happy\n\nSentence: I lost my keys in the rain.\nFeeling: sad\n"
    for item in items:
        text += f'\nSentence: {item}\nFeeling: {{{{select "feeling" "happy|sad"}}}}\n'
    healed = play(text, ("kv",), BUILT_IN)[0].scores[0].values["feeling"]
    assert healed == ["happy", "sad", "happy", "sad"]


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_strategy_fills_the_slots_alike_on_the_built_in_model(temperature: float) -> None:
    columns = ("kv", "speculative", "lookahead", "lookup")
    board, _ = play(PROGRAM, columns, BUILT_IN, sampling=Sampling(temperature, seed=5))
    for score in board.scores:
        assert score.values == board.scores[0].values
        assert score.tokens == board.scores[0].tokens


def test_a_program_s_decisions_are_summed_up_once_for_all_of_its_slots() -> None:
    _, events = play(PROGRAM, ("kv", "lookup"))
    decisions = [event for event in events if isinstance(event, Decided) and event.column == 1]
    assert len(decisions) == 1
