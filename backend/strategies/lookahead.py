"""Lookahead decoding as a strategy."""

from backend.decoding.seams import UNDECIDED, Drafter
from backend.drafters.lookahead import LADDER, Lookahead, Sizes, choose_sizes, predicted
from backend.errors import DerbyError
from backend.strategies.declaration import Candidate, DrafterInputs, Strategy, Values
from backend.strategies.equivalent import Equivalent
from backend.strategies.settings import AUTO, NAMED_SIZE, Flag, WholeNumber


def scratch_depth(values: Values) -> int:
    """Positions beyond the last token that any setting which `auto` may choose reaches."""
    if not values["auto"]:
        return values["window"] + values["level"]
    return max(setting.window + setting.level for setting in LADDER)


def build(inputs: DrafterInputs) -> Drafter:
    values, seed = inputs.values, inputs.sampler.sampling.seed
    if inputs.target.guesses != "trees":
        raise DerbyError(
            f"Lookahead checks many guesses at once, and {inputs.target.spec} checks one chain of "
            "them: choose Speculative or Prompt lookup."
        )
    sizes, decision = Sizes(values["window"], values["level"], values["guesses"]), UNDECIDED
    if values["auto"]:
        sizes, decision = choose_sizes(inputs.costs.now, inputs.target.spec.name)
    return Lookahead(sizes, seeded=values["seeded"], seed=seed, decision=decision)


def _candidates() -> tuple[Candidate, ...]:
    fixed = (
        Candidate(
            f"window={s.window},level={s.level},guesses={s.guesses}",
            predict=lambda costs, s=s: predicted(s, costs),
        )
        for s in LADDER
    )
    return (*fixed, Candidate())


LOOKAHEAD = Strategy(
    "lookahead",
    "Lookahead",
    "Guesses several tokens ahead, remembers them as n-grams and checks the likely ones.",
    gist="Checks guessed n-grams",
    settings=(
        AUTO,
        WholeNumber("window", "Window", "Tokens guessed ahead (W).", 5, 2, 32, fixes=NAMED_SIZE),
        WholeNumber("level", "Level", "Length of an n-gram (N).", 3, 2, 8, fixes=NAMED_SIZE),
        WholeNumber(
            "guesses", "Guesses", "n-grams checked per pass (G).", 5, 1, 32, fixes=NAMED_SIZE
        ),
        Flag("seeded", "Seeded", "Also use the n-grams of the text so far.", default=True),
    ),
    build=build,
    scratch_depth=scratch_depth,
    equivalent=lambda _values: Equivalent(missing="lookahead"),
    verified=(
        "window=5,level=3,guesses=5",
        "window=7,level=4,guesses=7,seeded=false",
        "window=15,level=5,guesses=15",
    ),
    candidates=_candidates(),
)
