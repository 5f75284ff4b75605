"""Programs: fixed text is fed, slots are decoded, and every strategy fills them alike."""

import json
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from lib import compile_grammar, without_template
from small_tokenizer import sentencepiece_like, small_tokenizer

from backend.decoding.clock import Clock
from backend.decoding.loop import Context, Parts
from backend.decoding.sampling import Sampler
from backend.decoding.seams import Constraint
from backend.engines.fake import FakeEngine
from backend.errors import DerbyError
from backend.events import Decided, Event, Fed, Filled, Step
from backend.grammar.constraint import GrammarCompiler
from backend.grammar.sources import GrammarSource
from backend.programs import runner
from backend.programs.parser import Gen, parse_program
from backend.programs.runner import Healing, run_program, slot_grammar, slot_grammars
from backend.racing.hosts import InlineHost
from backend.racing.models import LoadedModels
from backend.racing.race import Race
from backend.results.scoreboard import Scoreboard
from backend.strategies.column import OwnModel, parse_column
from backend.text import ByteTokenizer
from backend.types import ModelSpec, Proposal, Request, Sampling

FAKE = ModelSpec("fake", "fake")
ONE_TOKEN = ModelSpec("fake-one-token", "fake")
BUILT_IN = ModelSpec()
PROGRAM = """A form.
Colour: {{select "colour" "red|green|blue"}}
Number: {{gen "n" regex="[0-9]+" max_tokens=5}}
Word: {{gen "w" max_tokens=7 stop="e" stop=" "}}
Word: {{gen "w" max_tokens=7 stop="e" stop=" "}}
Word: {{gen "w" max_tokens=7 stop="e" stop=" "}}
Again {{colour}} and {{w}}: {{gen "last" max_tokens=4 temperature=1.5}}"""
COLUMNS = ("kv", "stateless", "speculative:k=3", "lookahead", "lookup")


def play(
    program: str,
    columns: Sequence[str] = COLUMNS,
    target: ModelSpec = FAKE,
    engines: LoadedModels | None = None,
    **asked: object,
) -> tuple[Scoreboard, list[Event]]:
    # On models of their own none is at the photo finish, at which Stateless would end.
    own = OwnModel(target.name, target.engine, target.precision, target.device)
    chosen = tuple(parse_column(column).on(own) for column in columns)
    board, events = Scoreboard(chosen), list[Event]()

    def emit(event: Event) -> None:
        events.append(event)
        board.add(event)

    race = Race(Request(program, 64, **asked), chosen, ModelSpec("-"))  # type: ignore[arg-type]
    InlineHost(engines or LoadedModels()).run(race, emit, lambda: False)
    assert not [s.message for s in board.scores if s.state == "failed"]
    return board, events


@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("heal", [True, False])
@pytest.mark.parametrize("target", [FAKE, ONE_TOKEN], ids=str)
def test_every_strategy_fills_the_slots_alike(
    target: ModelSpec, temperature: float, heal: bool
) -> None:
    columns = COLUMNS if target == FAKE else ("kv", "stateless")
    sampling = Sampling(temperature, seed=5)
    board, _ = play(PROGRAM, columns, target, sampling=sampling, heal=heal)
    first = play(PROGRAM, ("kv",), FAKE, sampling=sampling, heal=heal)[0].scores[0]
    assert first.reason == "end of program"
    for score in board.scores:
        assert (score.values, score.text, score.tokens) == (first.values, first.text, first.tokens)


def test_the_end_of_a_value_that_shares_a_token_with_the_stop_string_is_shown_once() -> None:
    """The token `")` ends a value with a quote, which was shown as the value's and again as the
    fixed text's.
    """
    program = 'print("hello{{gen "a" max_tokens=8 stop=")"}}) # done{{gen "b" max_tokens=2}}'
    for score in play(program, ("kv", "lookup"), BUILT_IN)[0].scores:
        a, b = score.values["a"], score.values["b"]
        assert score.text == f'print("hello{a}) # done{b}'


def test_values_are_what_the_slots_allow_and_the_text_holds_them() -> None:
    score = play(PROGRAM, ("kv",))[0].scores[0]
    values = score.values
    assert values["colour"] in ("red", "green", "blue")
    assert re.fullmatch("[0-9]+", str(values["n"]))
    assert len(values["w"]) == 3
    assert not any("e" in word or " " in word for word in values["w"])
    expected = f"A form.\nColour: {values['colour']}\nNumber: {values['n']}\n"
    expected += "".join(f"Word: {word}\n" for word in values["w"])
    expected += f"Again {values['colour']} and {values['w'][-1]}: {values['last']}"
    assert score.text == expected
    assert json.loads(json.dumps(values)) == values


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
    fed = sum(e.tokens for e in events if isinstance(e, Fed) and e.column == 0)
    sampled = sum(len(e.tokens) for e in events if isinstance(e, Step) and e.column == 0)
    assert fed > sampled == len(board.scores[0].tokens)
    # With the cache every token is computed once; without it, once more for every later one.
    assert board.scores[0].rows <= fed + sampled
    assert board.scores[1].rows > 2 * board.scores[0].rows


@pytest.mark.parametrize("slot", ['gen "a" max_tokens=4', 'select "a" "yes|no"'])
@pytest.mark.parametrize("heal", [True, False])
def test_a_program_may_begin_with_a_slot(slot: str, heal: bool) -> None:
    """A program without a text before its first slot had no token to go on from: every column
    tried to cut its cache back to -1 tokens, an internal error. It begins as any text does.
    """
    board, events = play(f"{{{{{slot}}}}} is it.", COLUMNS, heal=heal)
    plain = board.scores[0]
    assert plain.text == f"{plain.values['a']} is it."
    if slot.startswith("gen"):
        engine, text = FakeEngine(), [256]
        for _ in range(4):
            text.append(int(engine.logits(text).argmax()))
        assert plain.tokens == text[1:]
    for score in board.scores:
        assert (score.values, score.tokens) == (plain.values, plain.tokens)
    assert sum(e.tokens for e in events if isinstance(e, Fed) and e.column == 0) == 1 + len(
        " is it."
    )


def test_a_vocabulary_without_a_beginning_says_what_to_do() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.eos_ids, tokenizer.start_id = frozenset(), None
    engine, request = FakeEngine(), Request('{{gen "a"}}', 4)
    parts = Parts(engine.open(), tokenizer, Sampler(request.sampling), Clock())

    def compile_nothing(_: object, __: str) -> Constraint:
        raise AssertionError

    events = run_program(0, parse_program(request.prompt), [], request, parts, compile_nothing)
    with pytest.raises(DerbyError, match="begin with a slot"):
        list(events)


@pytest.mark.parametrize(
    ("regex", "texts"),
    [
        (r"[0-9]\/[0-9]", ["1/2"]),
        (r"[0-9]/[0-9]", ["1/2"]),
        (r"a\\/b", ["a\\/b"]),
        (r"[\/]x", ["/x"]),
        ("a\nb", ["a\nb"]),
    ],
)
def test_a_slash_in_a_slot_s_regex_is_a_slash(regex: str, texts: Sequence[str]) -> None:
    r"""A slot's regex `a\/b` was written into the Lark grammar as `/a\\/b/`: the escape that it
    had was escaped, the slash ended the literal, and the column failed.
    """
    source = slot_grammar(Gen("g", regex=regex))
    assert source is not None
    for text in texts:
        constraint = compile_grammar(source, ByteTokenizer())
        constraint.advance(list(text.encode()))
        assert constraint.finished()


def test_a_slot_s_regex_that_ends_in_half_an_escape_is_one_sentence() -> None:
    board = Scoreboard((parse_column("kv"),))
    race = Race(Request('One {{gen "a" regex="a\\\\"}}'), board.columns, FAKE)
    InlineHost(LoadedModels()).run(race, board.add, lambda: False)
    assert "005C" in board.scores[0].message


def test_a_user_turn_goes_through_the_chat_template() -> None:
    score = play('Hello{{assistant}}Sure: {{gen "a" max_tokens=3}}', ("kv",))[0].scores[0]
    assert score.prompt_tokens == len(b"User: Hello\nAnswer: ")
    assert score.text.startswith("Sure: ")


def test_a_full_context_ends_a_program() -> None:
    score = play(PROGRAM, ("kv",), context=48)[0].scores[0]
    assert score.reason == "context full"


def test_the_first_token_heals_and_the_rest_is_free() -> None:
    healing = Healing([3, 5], 8)
    block = Proposal.chain([1, 2])
    assert healing.cut(block).tokens == ()
    assert healing.masks_along(Proposal()).allowed.tolist() == [[i in (3, 5) for i in range(8)]]
    healing.advance([5])
    assert healing.cut(block) is block
    assert healing.masks_along(block).allowed.size == 0


def test_a_column_s_grammar_binds_every_slot_that_has_none_from_its_start() -> None:
    """The slots shared one constraint, which the first of them had walked to its end: the others
    came out empty.
    """
    program = '{{gen "a" max_tokens=12}}, {{select "b" "x|y"}}, {{gen "a" max_tokens=12}}.'
    score = play(program, ("grammar:grammar=date",))[0].scores[0]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d", date) for date in score.values["a"])
    assert len(score.values["a"]) == 2
    assert score.values["b"] in ("x", "y")


@pytest.mark.parametrize("slot", ['gen "v" max_tokens=5', 'select "v" "bc|cc"'])
def test_healing_goes_together_with_a_grammar(tmp_path: Path, slot: str) -> None:
    """Healing took the place of the column's own grammar, so that a slot held anything at all."""
    tokenizer = small_tokenizer(tmp_path)
    engine, program = FakeEngine(vocab_size=16), parse_program(f"ca{{{{{slot}}}}}a{{{{{slot}}}}}")
    compiler = GrammarCompiler(tokenizer)
    own = GrammarSource("regex", "[bc]c", "own")
    compiler.prepare(own, *slot_grammars(program))
    for seed in range(8):
        request = Request("any", 8, Sampling(0.9, seed=seed))
        parts = Parts(engine.open(), tokenizer, Sampler(request.sampling), Clock())
        events = run_program(0, program, [], request, parts, compiler.compile, own)
        values = [event.value for event in events if isinstance(event, Filled)]
        assert len(values) == 2
        assert set(values) <= {"bc", "cc"}


def test_a_long_option_is_chosen_whole() -> None:
    """It was cut at 256 tokens, into a value that is none of the options."""
    options = [letter * 300 for letter in "xy"]
    score = play(f'Say {{{{select "a" "{"|".join(options)}"}}}}!', ("kv",))[0].scores[0]
    assert score.values["a"] in options


def test_what_is_healed_is_not_lost_with_a_limit(tmp_path: Path) -> None:
    """A grammar lets the fixed text be spelled anew, in more tokens than a slot may have: what was
    missing of it vanished from the text and from what the model read.
    """
    tokenizer = small_tokenizer(tmp_path)
    engine, program = FakeEngine(vocab_size=16), parse_program('cab{{gen "v" max_tokens=1}}!')
    compiler = GrammarCompiler(tokenizer)
    own = GrammarSource("regex", "[bc]+", "own")
    compiler.prepare(own)
    shown = set[str]()
    for seed in range(30):
        request = Request("any", 8, Sampling(2.0, seed=seed))
        parts = Parts(engine.open(), tokenizer, Sampler(request.sampling), Clock())
        events = list(run_program(0, program, [], request, parts, compiler.compile, own))
        spans = [text for e in events for _, text in getattr(e, "spans", [])]
        values = [event.value for event in events if isinstance(event, Filled)]
        assert "".join(spans) == f"cab{values[0]}!"
        shown.add("".join(spans))
    assert len(shown) > 1


def test_a_program_without_a_question_needs_no_chat_template(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On base models it was refused: the system prompt of a template was looked for."""
    monkeypatch.setattr(ByteTokenizer, "encode", without_template)
    board, _ = play('Once {{gen "v" max_tokens=4}}.', ("kv", "lookup"))
    assert board.scores[0].reason == "end of program"


@pytest.mark.parametrize("heal", [True, False])
@pytest.mark.parametrize("text", ["ab a{0} b{1}ab {2}a b", "{0}a{1} ab", " a{0}"])
def test_a_program_reads_the_text_that_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, heal: bool
) -> None:
    """Tokenizers like Llama 2's put a space in front of every fixed text, which was not shown, and
    took one from each slot's value.
    """
    tokenizer = sentencepiece_like(tmp_path)
    engine = FakeEngine(vocab_size=tokenizer.vocab_size)
    slots = [f'{{{{gen "{name}" max_tokens=6 stop="b"}}}}' for name in "xyz"]
    program = parse_program(text.format(*slots))
    for seed in range(20):
        request = Request("any", 8, Sampling(0.9, seed=seed), heal=heal)
        parts = Parts(engine.open(), tokenizer, Sampler(request.sampling), Clock())
        monkeypatch.undo()
        context = Context(tokenizer.encode("", chat=False), parts)
        monkeypatch.setattr(runner, "Context", lambda *_args, context=context: context)
        prompt, board = tokenizer.encode("", chat=False), Scoreboard((parse_column("kv"),))
        for event in run_program(0, program, prompt, request, parts, compile_grammar):
            board.add(event)
        stream = tokenizer.stream()
        whole = "".join(map(stream.push, context.tokens)) + stream.flush()
        # Such a tokenizer puts a space in front of a text that nothing precedes.
        assert whole in (board.scores[0].text, f" {board.scores[0].text}")


@pytest.mark.model
def test_healing_lets_the_model_spell_as_it_has_learnt() -> None:
    """Ten sentences to be called happy or sad: cut off before the space, the model always said
    happy, for it knows these words with the space in front of them only.
    """
    items = ["I love this film.", "The soup was cold.", "What a lovely day!", "My train was late."]
    text = "Is the sentence happy or sad?\n\nSentence: The sun shines and I am glad.\n"
    text += "Feeling: happy\n\nSentence: I lost my keys in the rain.\nFeeling: sad\n"
    for item in items:
        text += f'\nSentence: {item}\nFeeling: {{{{select "feeling" "happy|sad"}}}}\n'
    engines = LoadedModels(idle_warm_up=True)
    healed = play(text, ("kv",), BUILT_IN, engines)[0].scores[0].values["feeling"]
    bent = play(text, ("kv",), BUILT_IN, engines, heal=False)[0].scores[0].values["feeling"]
    assert healed == ["happy", "sad", "happy", "sad"]
    assert bent != healed


@pytest.mark.thorough
@pytest.mark.model
def test_a_program_may_begin_with_a_slot_on_the_built_in_model() -> None:
    columns = ("kv", "lookup")
    board, _ = play('{{gen "a" max_tokens=4}}.', columns, BUILT_IN)
    assert board.scores[0].values == board.scores[1].values


@pytest.mark.thorough
@pytest.mark.model
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_every_strategy_fills_the_slots_alike_on_the_built_in_model(temperature: float) -> None:
    columns = ("kv", "speculative", "lookahead", "lookup")
    board, _ = play(PROGRAM, columns, BUILT_IN, sampling=Sampling(temperature, seed=5))
    for score in board.scores:
        assert score.values == board.scores[0].values
        assert score.tokens == board.scores[0].tokens


def test_a_program_s_decisions_are_told_once_for_all_of_its_slots() -> None:
    """Each slot told them anew, and none summed up what had been drafted."""
    _, events = play(PROGRAM, ("kv", "lookup", "lookahead"))
    lookup = [event for event in events if isinstance(event, Decided) and event.column == 1]
    assert len(lookup) == 1
    assert re.search(r"in \d+ of \d+ passes", lookup[0].why) or lookup[0].declined
    lookahead = [event for event in events if isinstance(event, Decided) and event.column == 2]
    assert all(a != b for a, b in pairwise(lookahead))
    assert lookahead
