"""The settings that won in a column's run, for its snippets."""

from dataclasses import dataclass, replace

from backend.drafters.lookahead_plan import YIELDS, choose_setting
from backend.errors import DerbyError
from backend.export.snippets import Settings
from backend.results.metrics import Score
from backend.strategies.registry import Strategy
from backend.strategies.settings import (
    DraftModelDrafting,
    LookaheadDrafting,
    LookupDrafting,
    NoDrafting,
)

#: What there are snippets for, in their order.
LIBRARIES = ("transformers", "openvino-genai", "vLLM", "llama.cpp")


@dataclass(frozen=True, slots=True)
class Won:
    """What to write a column's snippets from. `note` says what its run decided; "" if nothing."""

    strategy: Strategy
    settings: Settings = Settings()  # noqa: RUF009 (frozen)
    note: str = ""


def won(strategy: Strategy, score: Score) -> Won:
    """What `auto` came to in this run; a column without it is as it was set.

    Raises DerbyError of a column that failed.
    """
    if score.state == "failed":
        raise DerbyError(f"{strategy.title} failed in the last race: choose another column.")
    drafting = strategy.drafting
    if isinstance(drafting, NoDrafting) or not drafting.auto:
        return Won(strategy)
    if score.steps < 2:
        return Won(strategy, note="The column wrote too little to tell what pays: run it longer.")
    if not score.drafted:
        return _plain(strategy, "no guess promised to pay")
    if isinstance(drafting, LookaheadDrafting):
        return _lookahead(strategy, score)
    return _drafted(strategy, drafting, score)


def _plain(strategy: Strategy, why: str) -> Won:
    note = f"Plain decoding won here ({why}), so this is plain decoding."
    return Won(replace(strategy, drafting=NoDrafting()), note=note)


def _lookahead(strategy: Strategy, score: Score) -> Won:
    best, decision = choose_setting(score.costs, "decline", YIELDS.model)
    # A window widens every pass: one over a single row was made without lookahead.
    if not decision.settings or score.widths[1] > score.widths.total() / 2:
        return _plain(strategy, "lookahead did not pay and was given up")
    settings = Settings(window=best.window, level=best.level, guesses=best.guesses)
    shape = f"W={best.window}, N={best.level}, G={best.guesses}"
    return Won(strategy, settings, f"Auto chose {shape} here.")


def _drafted(
    strategy: Strategy, drafting: DraftModelDrafting | LookupDrafting, score: Score
) -> Won:
    rounds = score.depths.total()
    mean = sum(drafted * n for (drafted, _), n in score.depths.items()) / rounds
    # Two branches are drafted in one round, and a grammar's forced tokens count as drafted.
    k = min(max(1, round(mean)), drafting.k)
    note = f"K={k} is what auto drafted here on average, in {rounds} of {score.steps - 1} passes."
    return Won(strategy, Settings(k=k), note)
