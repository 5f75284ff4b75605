"""The sentences: each says what the figures say, of whichever columns there are."""

import random
import re
from collections.abc import Hashable, Sequence
from dataclasses import replace

import pytest
from boards import (
    LONG,
    LONG_PAIRS,
    SINGLE,
    SPEC,
    board_of,
    started,
    step,
    written,
)

from backend.costs.pass_costs import PassCosts
from backend.events import (
    Conditions,
    CostsKnown,
    Decided,
    Event,
    Failed,
    Fed,
    Finished,
    Judged,
    Prepared,
    Started,
    Step,
)
from backend.results.figures import NONE, figure
from backend.results.scoreboard import ENDED
from backend.results.sentences import (
    brief,
    doubt,
    doubts,
    headline,
    kept,
    ledger,
    live,
    pace,
    reading,
    reason,
    reasons,
    remark,
    time_left,
    verdict,
    waiting,
    writing,
)
from backend.web.view import view

CURVE = PassCosts((1, 2, 4, 8, 16), (10.0, 11.0, 12.0, 14.0, 22.0), 0.0)
SINGLES = [[t] for t in range(61)]
OTHER = [[9], *LONG[1:]]
INT8 = {"precision": "int8"}


def test_a_speedup_is_told_by_its_two_factors() -> None:
    """Two tokens per forward at one and a half times the cost: a third faster."""
    board = board_of("kv speculative", *written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.15))
    said = "2.00 tokens per pass \u00f7 1.50\u00d7 the time = 1.33\u00d7 (1.31\u20131.35)"
    more = "guesses accepted by position 100%"
    assert (reason(board, 1), brief(board, 1)) == (f"{said}, faster; {more}", f"{said}.")
    assert pace(board, 1) == "\u25b2 faster"
    assert headline(board) == (
        "Speculative wins: 1.33\u00d7 as fast as KV reuse. "
        "The texts of KV reuse and Speculative are identical."
    )


def test_while_columns_read_it_is_told_how_many_are_ready() -> None:
    """For six seconds four lanes stood still, and nothing said why."""
    board = board_of("kv lookup", started(0), started(1))
    ready = "Columns read the prompt one after another: {} of 2 are ready"
    assert reading(board) == ready.format(0)
    board.add(step(1, [1], 0.1))
    assert reading(board) == ready.format(1)
    assert view(board, race=1, goal=9)["top"] == ready.format(1)
    board.add(step(0, [1], 0.1))
    assert reading(board) == ""
    assert reading(board_of("kv", started(0))) == ""


def test_the_headline_admits_that_nothing_is_faster_and_names_a_changed_text() -> None:
    plain = written(0, LONG, 0.1)
    nothing = "No strategy was measurably faster than KV reuse."
    same = board_of("kv lookup", *plain, *written(1, LONG, 0.11))
    assert headline(same) == (
        "No strategy was measurably faster than KV reuse; Prompt lookup was slower. "
        "The texts of KV reuse and Prompt lookup are identical."
    )
    changed = board_of("kv lookup", *plain, *written(1, OTHER, 0.1))
    assert headline(changed) == f"{nothing} The text changed in Prompt lookup."
    other = board_of("kv grammar", *plain, *written(1, OTHER, 0.05))
    assert headline(other) == (
        "KV reuse writes 10.0 tokens a second. "
        "Grammar, whose grammar changed its text, is 2.00\u00d7 as fast."
    )


def test_without_a_baseline_there_is_no_speedup() -> None:
    board = board_of("lookup", *written(0, SINGLE, 0.1))
    assert (pace(board, 0), brief(board, 0)) == ("", "")
    assert headline(board) == "Prompt lookup is fastest with 10.0 tokens a second."


def test_of_a_failed_baseline_the_fastest_column_is_named() -> None:
    """ "Speculative is fastest with 23.8 tokens a second", above a grammar's lane at 25.0."""
    failed = Failed(0, "no memory")
    fast, slow = written(2, SINGLE, 0.1), written(1, SINGLE, 0.2)
    board = board_of("kv speculative grammar", failed, *fast, *slow)
    assert headline(board).startswith("Grammar is fastest with 10.0 tokens a second.")


def test_the_headline_names_failures_and_stops() -> None:
    failed = board_of("kv lookup", Failed(0, "why"), Failed(1, "why"))
    assert headline(failed) == "No column finished: each card says why."
    one = board_of("kv lookup", *written(0, LONG, 0.1), Failed(1, "why"))
    assert headline(one).endswith(" Prompt lookup failed: its card says why.")
    two = board_of("kv lookup grammar", *written(0, LONG, 0.1), Failed(1, "why"), Failed(2, "why"))
    assert headline(two).endswith(" Prompt lookup and Grammar failed: their cards say why.")
    stopped = board_of("kv", *written(0, SINGLE, 0.1)[:-1], Finished(0, "stopped", []))
    assert headline(stopped).startswith("Stopped early.")
    nothing = board_of("kv", Finished(0, "stopped", []))
    assert headline(nothing) == "Stopped before the first token."


def priced(column: int, steps: Sequence[Sequence[int]], rows: int, seconds: float) -> list[Event]:
    """A finished column on a known curve whose passes over `rows` rows took so long each."""
    costs = CostsKnown(column, list(CURVE.widths), list(CURVE.seconds), 0.0, 0.0)
    passes = [
        step(column, tokens, seconds, len(tokens) - 1, rows=rows, drafted=rows - 1)
        for tokens in steps
    ]
    return [started(column), costs, *passes, Finished(column, "token limit", [])]


def reason_of(column: str, steps: Sequence[Sequence[int]], rows: int, seconds: float) -> str:
    events = (*priced(0, SINGLES, 1, 10.0), *priced(1, steps, rows, seconds))
    return reason(board_of(f"kv {column}", *events), 1)


def test_the_sentence_gives_the_factors_and_the_prediction_beside_the_measurement() -> None:
    blocks = [[0], *([t, t + 1, t + 2] for t in range(1, 61, 3))]
    assert reason_of("lookup", blocks, 4, 15.0) == (
        "3.00 tokens per pass \u00f7 1.50\u00d7 the time = "
        "2.00\u00d7 (1.97\u20132.03), faster; guesses accepted by position 95%, 95%, 0%; "
        "predicted speed-up 2.50\u00d7"
    )
    assert reason_of("lookup", blocks, 4, 45.0).startswith(
        "3.00 tokens per pass \u00f7 4.50\u00d7 the time = 0.67\u00d7 (0.65\u20130.68), slower; "
    )
    assert ", no clear difference; " in reason_of("lookup", blocks, 4, 30.0)


def test_a_prediction_over_another_models_plain_decoding_is_not_put_beside_the_speedup() -> None:
    """A column at int4 was 3.13\u00d7 as fast as the baseline, "predicted 0.98"."""
    blocks = [[0], [1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]]
    _, *other = priced(1, blocks, 4, 15.0)
    events = (*priced(0, SINGLES, 1, 10.0), started(1, precision="int4"), *other)
    board = board_of("kv lookup@int4", *events)
    assert board.scores[1].predicted
    assert "predicted" not in reason(board, 1)


def test_why_a_column_is_as_fast_as_it_is_is_told_in_whole_sentences() -> None:
    """A lower share of right guesses "so" wrote more tokens: how many were guessed was not told."""
    blocks = [[0], *([t, t + 1, t + 2] for t in range(1, 61, 3))]
    events = (*priced(0, SINGLES, 1, 10.0), *priced(1, blocks, 4, 15.0))
    use, said = reasons(board_of("kv lookup", *events))
    assert use.endswith(", for prompts like this, Prompt lookup writes the same text fastest.")
    assert said == (
        "Prompt lookup: 3.1 guesses a pass, of which 63% were accepted, so a pass wrote 3.00 "
        "tokens. It took 1.50 times as long as a pass of KV reuse. 3.00 \u00f7 1.50 = 2.00."
    )


def test_a_sentence_has_one_prediction() -> None:
    """It said two: the one by what passes cost in this race, the other by what they cost before."""
    blocks = [[0], *([t, t + 1, t + 2] for t in range(1, 61, 3))]
    before = "at the start, the expected speed-up was 0.81\u00d7"
    events = (*priced(0, SINGLES, 1, 10.0), *priced(1, blocks, 4, 15.0), decided("", before))
    said = reason(board_of("kv lookahead", *events), 1)
    assert "predicted" not in said
    assert said.endswith(f"; {before}")


def decided(why: str, *declined: str, plain: bool = False) -> Decided:
    return Decided(1, {}, 0.8, why, list(declined), plain)


def test_a_column_that_declines_says_why() -> None:
    """In the words of what decided it, not of what a reader of the counts makes up."""
    why = decided("plain decoding", "lookahead would not pay enough", plain=True)
    board = board_of("kv lookahead", *written(0, LONG, 0.1), why, *written(1, LONG, 0.1))
    assert reason(board, 1) == "lookahead would not pay enough, so it worked like KV reuse"
    assert brief(board, 1) == "Lookahead would not pay enough, so it worked like KV reuse."
    idle = decided("no guess promised to pay", plain=True)
    board = board_of("kv@int8 lookup", *written(0, LONG, 0.1), idle, *written(1, LONG, 0.2, INT8))
    assert reason(board, 1) == "no guess promised to pay"
    assert remark(board.scores[1]) == ""


def test_a_column_that_declined_is_a_control_and_never_slower() -> None:
    """Its work is the baseline's: one that chance had made 0.89\u00d7 as fast was called slower, in
    red, beside a headline of 1.11.
    """
    why = decided("plain decoding", "lookahead would not pay enough", plain=True)
    quiet = Conditions(2, 0.0, 0.0, 0.0)
    for seconds in (0.09, 0.1, 0.11, 0.2):
        events = [*written(0, LONG, 0.1), why, *written(1, LONG, seconds), quiet]
        board = board_of("kv lookahead", *events)
        assert board.pace(1) == "control"
        assert pace(board, 1) == "same work"
        told = " ".join((headline(board), live(board), reason(board, 1), brief(board, 1)))
        assert not re.search("faster|slower|as fast", told)
        assert headline(board).startswith("KV reuse writes 10.0 tokens a second.")
        assert f"its {figure('speedup').text(board.scores[1], board.baseline)}" in ledger(board)
    guessed = board_of("kv lookahead", *written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.4), why)
    assert guessed.pace(1) == "slower", "it had guessed, and that was slower"
    other = board_of("kv lookahead@int8", *written(0, LONG, 0.1), *written(1, LONG, 0.2, INT8), why)
    assert other.pace(1) == "slower", "its weights are others"
    twice = board_of("kv kv", *written(0, LONG, 0.1), *written(1, LONG, 0.2))
    assert twice.pace(1) == "control", "the same column twice"


def test_the_live_sentence_changes_only_when_something_is_settled() -> None:
    """The leader was named anew twenty times in a minute. What is said depends on who is shown to
    be faster or slower and on who has ended, and on nothing else.
    """
    chance = random.Random(7)
    names = "kv lookup speculative grammar"
    board = board_of(names, *map(started, range(4)))
    told: dict[Hashable, str] = {}
    for token in range(400):
        for column, cost in enumerate((0.1, 0.07, 0.1, 0.2)):
            if board.scores[column].state not in ENDED:
                board.add(step(column, [token], cost * chance.uniform(0.6, 1.6)))
        if token in (150, 200):
            board.add(Failed(3, "why") if token == 150 else Finished(1, "end of text", []))
        settled = tuple((board.pace(i), board.scores[i].state) for i in range(4))
        said = live(board)
        assert told.setdefault(settled, said) == said
        assert not re.search(r"\d", said), "no figure that changes all the time"
    assert live(board) == ("Prompt lookup finished first. Grammar failed: its card says why.")
    assert len(set(told.values())) < 10


def test_how_long_a_race_may_take_is_told_roundly() -> None:
    """Columns take turns, so what they still need adds up; a column may have a limit of its own."""
    board = board_of("kv lookup", *map(started, range(2)))
    assert time_left(board, 100) == ""
    for token in range(11):
        for column in range(2):
            board.add(step(column, [token], 0.5))
    assert time_left(board, 111) == "up to 2 min left"
    assert time_left(board, 31) == "up to 20 s left"
    assert time_left(board, 30) == "", "of the last seconds, guesses would be half"
    board.add(Finished(0, "stopped", []))
    assert time_left(board, 71) == "up to 30 s left for Prompt lookup"
    late = board_of("kv lookup", *written(0, SINGLE, 0.5), started(1))
    for token in range(3):
        late.add(step(1, [token], 2.0))
    assert writing(late) == "Prompt lookup is still writing."
    assert time_left(late, 8192) == "up to 10 s left", "as many tokens as the first to finish"
    assert waiting(1) == "One race is ahead of yours; yours starts when it ends."
    assert waiting(3) == "3 races are ahead of yours; yours starts when they end."


@pytest.mark.parametrize("plain", [False, True])
def test_a_column_that_runs_although_it_does_not_pay_or_gave_up_says_so(*, plain: bool) -> None:
    why = decided("the largest setting that the costs allow", "lookahead with W=5", plain=plain)
    board = board_of("kv lookahead", *written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.4), why)
    assert reason(board, 1) == (
        "2.00 tokens per pass \u00f7 4.00\u00d7 the time = "
        "0.50\u00d7 (0.49\u20130.51), slower; guesses accepted by position 100%; "
        "lookahead with W=5"
    )
    said = "" if plain else "The largest setting that the costs allow."
    assert remark(board.scores[1]) == said


def test_a_shorter_column_is_compared_over_the_tokens_that_it_wrote() -> None:
    """Stateless stops early, while a token of it takes longer and longer."""
    slow = [step(1, [t], 0.1 * t) for t in range(1, 10)]
    short = [started(1), step(1, [0], 1.0), *slow, Finished(1, "photo finish", [])]
    board = board_of("kv stateless", *written(0, LONG, 0.1), *short)
    assert board.speedup(1) == pytest.approx(0.2)
    assert (
        reason(board, 1) == "1 token per pass \u00f7 5.00\u00d7 the time = "
        "0.20\u00d7 (0.08\u20130.51), slower"
    )
    # Its interval was of the time in which both ran, in which its tokens were cheaper: 0.31 (0.26
    # to 0.36), where its tokens took four times as long.
    slow = [step(1, [t], 0.1 + 0.02 * t, rows=20 + t) for t in range(1, 33)]
    short = [started(1), step(1, [0], 1.0), *slow, Finished(1, "photo finish", [])]
    gain = board_of("kv stateless", *written(0, [[t] for t in range(96)], 0.1), *short).gain(1)
    assert gain.value == pytest.approx(3.2 / sum(0.1 + 0.02 * t for t in range(1, 33)))
    assert gain.known
    assert gain.low < gain.value < gain.high


def test_nothing_is_said_of_a_difference_before_there_is_an_interval() -> None:
    """In the first second of a race, a column at 0.40 of the baseline's speed was said to have too
    few passes to tell, and in the next line that no difference was shown.
    """
    board = board_of("kv stateless", *written(0, SINGLE, 0.1), *written(1, SINGLE[:3], 0.25))
    assert pace(board, 1) == "too short to tell"
    assert reason(board, 1) == "1 token per pass \u00f7 2.50\u00d7 the time = 0.40\u00d7"


def test_other_weights_are_named_with_what_they_did_to_the_text() -> None:
    """Is int8 faster than speculation, and what does it change? One race says both."""
    events = [
        *written(0, LONG, 0.1),
        *written(1, LONG, 0.05, {"precision": "int8"}),
        *written(2, OTHER, 0.04, {"precision": "int4"}),
        *written(3, LONG_PAIRS, 0.15),
    ]
    assert headline(board_of("kv kv@int8 kv@int4 speculative", *events)) == (
        "Speculative wins: 1.33\u00d7 as fast as KV reuse. KV reuse (int4), whose "
        "text may differ, is 2.50\u00d7 as fast. "
        "The texts of KV reuse and Speculative are identical. "
        "With other weights or engines, KV reuse (int8) wrote the same text as KV reuse; KV reuse "
        "(int4) differs from KV reuse from token 2."
    )


def test_two_texts_with_two_references_are_both_the_same() -> None:
    """ "All two texts are the same as those they must match."""
    events = [
        *written(0, LONG, 0.1),
        *written(1, LONG, 0.05, {"precision": "int8"}),
        *written(2, LONG_PAIRS, 0.15),
        *written(3, LONG_PAIRS, 0.08, {"precision": "int8"}),
    ]
    told = headline(board_of("kv kv@int8 speculative speculative@int8", *events))
    assert "Both texts are the same as those they must match." in told


def test_a_column_that_promises_a_distribution_is_never_said_to_differ() -> None:
    names = "kv speculative:promise=distribution"
    other = [[i + 90, i + 91] for i in range(1, 61, 2)]
    events = [replace(started(1), keeps_text=False), *written(1, other, 0.1)[1:]]
    alone = board_of(names, *written(0, LONG, 0.1), *events[:2])
    assert verdict(alone, 1) == "same distribution as KV reuse, and so far the same text"
    board = board_of(names, *written(0, LONG, 0.1), *events)
    assert verdict(board, 1) == "same distribution as KV reuse, but a different text from token 2"
    assert board.sameness(1) == "allowed"
    assert "text changed" not in headline(board)
    assert "Speculative, which draws a different text from the same distribution, is " in headline(
        board
    )
    # At temperature 0 the same column must match, and is told so.
    greedy = board_of(names, *written(0, LONG, 0.1), *written(1, other, 0.1))
    assert verdict(greedy, 1).startswith("differs from KV reuse at token 2")
    # On other weights the distribution is another one too.
    weights = [replace(events[0], spec=SPEC | INT8), *events[1:]]
    apart = verdict(board_of(names, *written(0, LONG, 0.1), *weights), 1)
    said = "differs from KV reuse at token 2, because it keeps the distribution, not the text"
    assert apart.startswith(said)
    assert "its weights are int8" in apart


def test_both_rules_acceptances_are_told_where_they_were_seen() -> None:
    seen = (step(0, [1, 2], 0.1, 1, overlaps=[0.5, 0.8]), step(0, [3], 0.1, overlaps=[0.2]))
    assert remark(board_of("kv", *seen).scores[0]) == (
        "Draft and target overlapped by 1 - TV = 0.50 on average. Same distribution accepts that "
        "share of the guesses; same text accepts at least 0.37."
    )


def test_a_race_that_used_up_the_lent_gpu_says_so() -> None:
    """Once, it read as if the visitor had stopped it."""
    for end, said in (
        ("stopped", "Stopped early."),
        ("end of GPU time", "The race ended early because the"),
    ):
        board = board_of("kv lookup", *written(0, LONG, 0.1), Finished(1, end, []))
        assert board.scores[1].state == "stopped"
        assert headline(board).startswith(said)


def test_a_lane_of_text_alone_is_told_by_its_speed() -> None:
    bare = Step(1, [], ["sampled"], [], [["sampled", "a"]], 0, 0, 0, {"total": 0.05})
    events = [*written(0, LONG, 0.1), Started(1, 5, "remote"), *[bare] * 61]
    board = board_of("kv lookup", *events, Finished(1, "end of text", []))
    assert board.speedup(1) == pytest.approx(2.0)
    assert reason(board, 1).startswith("1 token per pass")
    assert verdict(board, 1).startswith("differs from KV reuse at token 2"), (
        "character by character"
    )
    assert headline(board) == (
        "KV reuse writes 10.0 tokens a second. Prompt lookup, whose text may differ, is "
        "2.00\u00d7 as fast. With other weights or engines, Prompt lookup differs from KV reuse "
        "from token 2."
    )


def test_a_reused_cache_does_not_hide_what_the_grammar_cost_or_still_wants() -> None:
    """Once, the words on the cache took the place of those on the grammar."""
    masked = step(0, [7], 0.5, masks=[0.001, 0.003])
    end = Finished(0, "token limit", [], "'}'")
    board = board_of("grammar", started(0), Prepared(0, 4, 0.2, 0.01), masked, end)
    sentence = remark(board.scores[0])
    for part in ("compiled in 10.0 ms", "2 masks took 2.0 ms on average", "expects '}'", "4 of 5"):
        assert part in sentence


@pytest.mark.parametrize(
    ("judged", "said"),
    [
        (Judged(0, "valid", ""), "valid against its schema"),
        (Judged(0, "invalid", "3 is less"), "not valid against its schema: 3 is less"),
        (Judged(0, "unchecked", "too deep"), "not checked against its schema: too deep"),
    ],
)
def test_a_finished_text_is_called_what_the_validator_says(judged: Judged, said: str) -> None:
    """Five of 57 schemas gave texts that were no instances, and the column called them finished."""
    ends = [step(0, [1], 1.0), judged, Finished(0, "end of text", [])]
    board = board_of("grammar", started(0), *ends)
    assert verdict(board, 0) == said


def test_a_validator_s_word_stands_beside_the_comparison() -> None:
    valid = Judged(1, "valid", "")
    board = board_of("kv grammar", *written(0, SINGLE, 0.1), *written(1, SINGLE, 0.1), valid)
    assert verdict(board, 1) == "identical to KV reuse (7 tokens); valid against its schema"


def test_the_ledger_says_what_else_the_machine_did() -> None:
    quiet = board_of("kv", *written(0, LONG, 0.125), Conditions(1.5, 0.02, 0.03, 0.0))
    assert ledger(quiet) == (
        "During the race other programs (and any browser here) used 2% of 1.5 cores, this "
        "page's server 3%, and other virtual machines 0%. A one-token pass took 125 ms; half took "
        "between 125 ms and 125 ms. All models were loaded and warmed up before. No cache was "
        "reused."
    )
    assert not doubt(quiet)
    rivals = board_of("kv lookup", *written(0, LONG, 0.125), Conditions(1.5, 0.02, 0.03, 0.0))
    assert "Speed-ups leave out the time to read the prompt." in ledger(rivals)
    busy = board_of("kv", *written(0, LONG, 0.125), Conditions(2, 0.3, 0.05, 0.01))
    assert ledger(busy).endswith("Speeds may be off: run again when the machine is less busy.")
    taken = "others used 31% of the machine and this page 5%"
    assert doubt(busy) == f"Speeds may be off: {taken}."
    assert ledger(board_of("kv")) == ""
    first = Conditions(2, 0, 0, 0, loaded=1, cold=1)
    board = board_of("kv", Prepared(0, 40, 0.01), *written(0, LONG, 0.125), first)
    assert ledger(board).endswith(
        " 1 model had to be loaded and some pass widths were not warmed up. KV reuse began from a "
        "reused cache."
    )
    assert not doubt(board_of("kv"))


def test_a_speed_up_of_another_speed_of_the_machine_is_in_doubt() -> None:
    """A speed-up of 2.53 stood beside times of whole texts whose quotient was 2.11, and no line
    said so.
    """
    for later, doubted in ((0.1, False), (0.15, True)):
        plain = [step(0, [t], 0.1 if t < 31 else later) for t in range(1, 61)]
        events = [started(0), step(0, [0], 1.0), *plain, Finished(0, "token limit", [])]
        board = board_of("kv speculative", *events, *written(1, LONG_PAIRS, 0.1))
        board.add(Conditions(2, 0.0, 0.0, 0.0))
        assert doubt(board) == (
            "Speeds may be off: the machine's speed varied by 20%." if doubted else ""
        )


def test_a_machine_that_wobbles_by_itself_spoils_timings_too() -> None:
    steps = [step(0, [t], 0.125 if t % 3 else 0.25) for t in range(1, 61)]
    board = board_of("kv", started(0), step(0, [0], 1.0), *steps, Conditions(2, 0, 0, 0))
    assert "half took between 125 ms and 250 ms. " in ledger(board)
    assert doubt(board)
    pairs = board_of("kv speculative", *written(1, LONG_PAIRS, 0.125), Conditions(2, 0, 0, 0))
    assert "one-token pass" not in ledger(pairs)


def test_a_column_that_failed_before_its_first_token_is_not_promised_an_answer() -> None:
    """Its details said: Some nan more tokens would show which is faster. Infinitely many times no
    token is nan, which is not more than any limit.
    """
    board = board_of("kv lookup", *written(0, LONG, 0.1), Failed(1, "the server does not answer"))
    assert doubts(board, 1) == ""


@pytest.mark.parametrize(("others", "page"), [(0.51, 0.0), (0.4, 0.6)])
def test_a_machine_that_others_use_by_half_shows_nobody_faster(others: float, page: float) -> None:
    """Races on a busy machine had a green "faster" beside "timings are in doubt". The page's own
    share is not that of others: it spoils timings, but they may be told.
    """
    events = [*written(0, LONG, 0.1), *written(1, LONG_PAIRS, 0.1), Conditions(2, others, page, 0)]
    board = board_of("kv speculative", *events)
    said = " ".join((headline(board), pace(board, 1), reason(board, 1), brief(board, 1)))
    assert board.noisy == (others > 0.5)
    assert bool(re.search("faster|slower|as fast", said)) == (not board.noisy)
    if board.noisy:
        assert headline(board).startswith("Too noisy to tell: others used 51% of the machine.")
        assert (board.pace(1), pace(board, 1)) == ("", "")
        shown = view(board, race=1, goal=61)
        assert shown["track"]["noisy"], "the figures are drawn pale"
        assert shown["columns"][1]["speed"] != NONE
    else:
        assert doubt(board).endswith("others used 40% of the machine and this page 60%.")


def test_a_noisy_race_says_so_from_early_on_and_calls_nothing_faster() -> None:
    """For a minute columns were "faster", in green, until the end took it back."""
    events = [*written(0, LONG[:-9], 0.1), *written(1, LONG_PAIRS[:-9], 0.1)]
    pairs = [event for event in events if not isinstance(event, Finished)]
    board = board_of("kv speculative", *pairs)
    assert live(board) == "So far Speculative is faster than KV reuse."
    board.add(Conditions(2, 0.8, 0.0, 0.1))
    assert live(board) == "The result will be rough: others used 90% of the machine."
    assert board.pace(1) == ""
    board.add(Conditions(2, 0.4, 0.0, 0.0))
    assert live(board) == "So far Speculative is faster than KV reuse."


def test_a_column_under_a_grammar_is_not_said_to_write_a_text_of_its_own() -> None:
    """The headline said "Prompt lookup, which writes a text of its own", and its card "same text":
    the card compares it with the plain column under the same grammar.
    """
    names = "kv grammar lookup:grammar=person"
    events = [*written(0, LONG, 0.1), *written(1, OTHER, 0.1)]
    pairs = [[9], *([t, t + 1] for t in range(2, 60, 2)), [60]]
    board = board_of(names, *events, *written(2, pairs, 0.1))
    assert kept(board, 2) == "same text"
    said = headline(board)
    assert said.startswith("KV reuse writes 10.0 tokens a second. Prompt lookup, whose grammar ")
    assert said.endswith("\u00d7 as fast. The texts of Grammar and Prompt lookup are identical.")


def test_a_program_is_told_by_its_times_alone() -> None:
    """ "Classify ten": a card said "0.25x, too short to tell" of 62.7 s against 15.5 s, and the
    headline 4.05 times as long. So does the table of figures.
    """
    fed = [Fed(column, 3, [["fixed", "Say: "]], 0.5) for column in range(2)]
    steps = [step(0, [0], 15.0), step(1, [0], 62.2)]
    ends = [Finished(column, "end of program", []) for column in range(2)]
    board = board_of("kv no_reuse", *map(started, range(2)), *fed, *steps, *ends)
    assert headline(board).startswith("KV reuse finished first, in 15.50 s; No reuse took 62.70 s.")
    assert pace(board, 1) == "4.05\u00d7 as long"
    shown = view(board, race=1, goal=9)
    card = shown["columns"][1]
    assert (card["speed"], card["pace"]) == ("62.70 s", "")
    told = {title: cells for title, *cells in shown["result"]["lines"]}
    assert told["speed-up"] == ["1.00\u00d7 as long", pace(board, 1)], "it was 0.25x"


def test_a_text_that_a_grammar_left_as_it_is_counts_among_the_identical_ones() -> None:
    """The headline named four columns that "wrote the same text", and the fifth one's card said
    "same text" as well: its grammar allowed what plain decoding writes.
    """
    events = [event for i in range(3) for event in written(i, LONG, 0.1)]
    said = headline(board_of("kv speculative kv:grammar=json", *events))
    assert said.endswith("All three texts are identical.")


def test_the_headline_names_the_lane_that_is_first_as_well_as_the_fastest() -> None:
    """ "Lookahead is 1.28\u00d7 as fast as KV reuse", while the grammar's lane was 1st: where a
    column has a cache of its own, a place counts the time to read the prompt, and no speed-up does.
    """
    late = [started(1), step(1, [0], 3.0), *(step(1, pair, 0.15, 1) for pair in LONG_PAIRS)]
    steps = [step(2, [token], 0.09) for [token] in LONG]
    early = [started(2), step(2, [0], 0.5), *steps]
    ends = [Finished(column, "token limit", []) for column in (1, 2)]
    names = "kv speculative lookahead:cache=session"
    board = board_of(names, *written(0, LONG, 0.1), *late, *early, *ends)
    assert headline(board).startswith(
        "Lookahead finished first; Speculative wrote fastest, 1.33\u00d7 as fast"
    )


def test_two_speeds_that_are_almost_one_are_not_told_apart() -> None:
    """ "Lookahead finished first; Speculative wrote fastest, 1.33 times", above a lane at 1.32x."""
    late = [started(1), step(1, [0], 3.0), *(step(1, pair, 0.15, 1) for pair in LONG_PAIRS)]
    early = [started(2), step(2, [0], 0.5), *(step(2, pair, 0.152, 1) for pair in LONG_PAIRS)]
    ends = [Finished(column, "token limit", []) for column in (1, 2)]
    names = "kv speculative lookahead:cache=session"
    board = board_of(names, *written(0, LONG, 0.1), *late, *early, *ends)
    assert headline(board).startswith(
        "Lookahead wins: 1.32\u00d7 as fast as KV reuse. "
        "Speculative (1.33\u00d7) may be just as fast."
    )
    shown = [each["place"] for each in view(board, race=1, goal=61)["columns"]]
    assert shown == ["3rd", "=1st", "=1st"]


def test_a_first_place_that_may_be_chance_is_called_so() -> None:
    """ "Lookahead wrote fastest, 1.17 times", above a grammar whose lane was 1st at 1.25x: its
    interval was too wide to call it faster.
    """
    paces = [0.13] * 30 + [0.02] * 30
    uneven = [started(2), *(step(2, [i], cost) for i, cost in enumerate([0.9, *paces]))]
    steady = [started(1), step(1, [0], 1.0), *(step(1, pair, 0.17, 1) for pair in LONG_PAIRS)]
    ends = [Finished(column, "token limit", []) for column in (1, 2)]
    board = board_of("kv speculative lookahead", *written(0, LONG, 0.1), *steady, *uneven, *ends)
    assert headline(board).startswith(
        "Lookahead finished first, which may be chance; Speculative is measurably 1.18\u00d7"
    )


def test_a_text_that_ends_earlier_is_called_shorter() -> None:
    """Stateless stopped at 32 of 56 tokens, and "all five texts" were identical."""
    events = [*written(0, LONG, 0.1), *written(1, LONG[:20], 0.1), *written(2, LONG, 0.1)]
    board = board_of("kv stateless lookup", *events)
    assert [kept(board, i) for i in range(3)] == ["", "same beginning", "same text"]
    assert headline(board).endswith("Two texts are identical; Stateless stopped early.")
    events[-len(written(2, LONG, 0.1)) :] = written(2, LONG[:9], 0.1)
    said = headline(board_of("kv stateless lookup", *events))
    assert said.endswith("The other texts match KV reuse but stop early.")
