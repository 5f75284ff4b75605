"""The table of decoding strategies: one loop, one frozen row each.

A row names what the loop is given: a cache or none, a drafter, a grammar. The settings of
drafting.py can be changed by a user; the page, the command line and the checks all read their
range, default and line of help there.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from backend.errors import DerbyError, check_range
from backend.grammar.sources import GrammarSource, shipped
from backend.kvcache.sources import is_snapshot_id
from backend.strategies.settings import (
    Drafting,
    DraftModelDrafting,
    LookaheadDrafting,
    LookupDrafting,
    NoDrafting,
)

#: A column's cache scope: this answer alone, or this visitor's earlier ones too. A snapshot's id
#: stands for that file.
CALL, SESSION = SCOPES = ("call", "session")
#: A column's grammar setting without a grammar, and with the user's own.
NO_GRAMMAR, OWN = "none", "own"
#: Positions beyond the last token that any setting which auto may choose reaches.
WIDEST = 20
#: Settings that say how much is guessed.
SIZES = {"k", "window", "level", "guesses"}


@dataclass(frozen=True, slots=True)
class Strategy:
    """One way to decode. `lossless`: must write exactly what plain decoding writes. Of columns
    with one and the same grammar, all must write what the plain one among them writes.
    """

    name: str
    title: str
    description: str
    cache: bool = True
    drafting: Drafting = NoDrafting()  # noqa: RUF009 (frozen)
    grammar: GrammarSource | None = None
    limit: int = 0  # tokens after which the column stops; 0: the request's limit alone
    scope: str = CALL  # where a beginning of the text may come from; or a snapshot's id
    restart: bool = False  # every slot of a program begins with an empty cache
    single: bool = False  # a program's text is generated as a whole instead of fed

    @property
    def label(self) -> str:
        """The title, with the settings that differ from the table's."""
        usual = STRATEGIES[self.name].settings()
        changed = {k: v for k, v in self.settings().items() if v != usual[k]}
        if changed.keys() & SIZES:
            changed.pop("auto", None)  # goes without saying
        told = ", ".join(f"{k}={word(v)}" for k, v in changed.items())
        return f"{self.title} ({told})" if told else self.title

    @property
    def lossless(self) -> bool:
        return self.grammar is None and not self.single

    @property
    def plain(self) -> bool:
        """True if other columns with its grammar must write what it writes."""
        return self.drafting == NoDrafting() and self.cache and not (self.restart or self.single)

    @property
    def scratch_depth(self) -> int:
        """Positions beyond the last token that scratch rows may reach."""
        match self.drafting:
            case LookaheadDrafting(auto=auto, window=window, level=level):
                return WIDEST if auto else window + level
            case _:
                return 0

    def settings(self) -> dict[str, Any]:
        """What a user may set, by name, with the values of this row."""
        values = {f.name: getattr(self.drafting, f.name) for f in fields(self.drafting)}
        if self.cache:
            values["cache"] = self.scope
        else:
            values["limit"] = self.limit
        return {**values, "grammar": self.grammar}

    def with_settings(self, values: Mapping[str, Any]) -> "Strategy":
        """This row with other settings. Raises DerbyError for an unknown name or a bad value."""
        known = self.settings()
        for name in values:
            if name not in known:
                options = ", ".join(known) or "none at all"
                raise DerbyError(f"{self.title} has no setting {name!r}; it has {options}.")
        if "auto" in known and "auto" not in values and SIZES & set(values):
            values = {**values, "auto": False}  # who names a size wants that size
        drafting = {
            f.name: _checked(f"{self.title}: {f.metadata['label']}", values[f.name], f)
            for f in fields(self.drafting)
            if f.name in values
        }
        changed = replace(self, drafting=replace(self.drafting, **drafting))
        if "limit" in values:
            limit = _whole(f"{self.title}: limit", values["limit"])
            check_range(f"{self.title}: limit", limit, 1, 4096)
            changed = replace(changed, limit=limit)
        if "cache" in values:
            changed = replace(changed, scope=_scope(self.title, values["cache"]))
        if "grammar" in values:
            changed = replace(changed, grammar=_grammar(values["grammar"]))
        return changed


def word(value: Any) -> str:
    """A setting's value as the command line takes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return NO_GRAMMAR if value is None else str(getattr(value, "name", value))


def _checked(name: str, value: Any, declared: Any) -> Any:
    """`value` as the type of the declared default, within its range."""
    match declared.default:
        case bool():
            if str(value).lower() not in ("true", "false", "1", "0"):
                raise DerbyError(f"{name} is {value!r}; it must be true or false.")
            return str(value).lower() in ("true", "1")
        case int():
            number = _whole(name, value)
            check_range(name, number, declared.metadata["low"], declared.metadata["high"])
            return number
        case _:
            if not isinstance(value, str) or not 0 < len(value) <= 200:
                raise DerbyError(f"{name} must be a name of 1 to 200 characters.")
            return value


def _whole(name: str, value: Any) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    if number is None or (not isinstance(value, str) and number != value):
        raise DerbyError(f"{name} is {value!r}; it must be a whole number.")
    return number


def _scope(title: str, value: Any) -> str:
    if value not in SCOPES and not is_snapshot_id(value):
        raise DerbyError(
            f"{title}: cache is {value!r:.60}; it must be {CALL} (this answer alone), {SESSION} "
            "(your earlier answers too) or a snapshot's id of 16 hexadecimal digits."
        )
    return value


def _grammar(value: Any) -> GrammarSource | None:
    if value is None or isinstance(value, GrammarSource):
        return value
    if value == NO_GRAMMAR:
        return None
    known = shipped()
    if not isinstance(value, str) or value not in known:
        raise DerbyError(
            f"There is no grammar {value!r}; choose {NO_GRAMMAR} or a shipped one: "
            f"{', '.join(known)}."
        )
    return known[value]


BASELINE = "kv"

STRATEGIES: dict[str, Strategy] = {
    row.name: row
    for row in (
        Strategy(
            "stateless",
            "Stateless",
            "No cache: the whole text is computed again for every token. What a server that keeps "
            "nothing between calls would do, and what the cache saves.",
            cache=False,
            limit=32,
        ),
        Strategy(
            BASELINE,
            "KV reuse",
            "Keys and values of earlier tokens stay in a cache, so a step computes one row. The "
            "baseline that every speed-up refers to.",
        ),
        Strategy(
            "speculative",
            "Speculative",
            "A cheap draft writes up to K tokens ahead; the target checks them all in one forward "
            "pass and keeps those it would have written itself.",
            drafting=DraftModelDrafting(),
        ),
        Strategy(
            "lookahead",
            "Lookahead",
            "No draft model: spare rows of each forward pass guess W future tokens by Jacobi "
            "iteration, the n-grams they form go to a pool, and G of them are verified at once.",
            drafting=LookaheadDrafting(),
        ),
        Strategy(
            "grammar",
            "Grammar",
            "Only tokens that a grammar allows can be chosen, so the text always parses. Where "
            "one continuation is left, it is proposed instead of waited for.",
            grammar=shipped()["person"],
        ),
        Strategy(
            "lookup",
            "Prompt lookup",
            "Speculation without a model: what followed the last occurrence of the text's own "
            "ending is proposed again. Strong where answers quote.",
            drafting=LookupDrafting(),
        ),
        Strategy(
            "restart",
            "Without reuse",
            "KV reuse that forgets its cache before every slot of a program, as if each were a "
            "call of its own. Without slots it is KV reuse.",
            restart=True,
        ),
        Strategy(
            "single",
            "One generation",
            "A program's text is not fed but generated, all of it in one go and as long as the "
            "program would be. Without slots it is KV reuse.",
            single=True,
        ),
    )
}

DEFAULT_COLUMNS = ("stateless", "kv", "speculative", "lookahead", "grammar")


def parse_column(text: str, own: GrammarSource | None = None) -> Strategy:
    """The strategy that `name[:setting=value,...]` describes; "grammar=own" means `own`, which is
    also the grammar column's grammar unless it names another.
    """
    name, _, rest = text.strip().partition(":")
    if name not in STRATEGIES:
        raise DerbyError(f"There is no column {name!r}; choose from {', '.join(STRATEGIES)}.")
    values: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise DerbyError(f"{part!r} in column {text!r} is not of the form setting=value.")
        values[key.strip()] = value.strip()
    if own and STRATEGIES[name].grammar:
        values.setdefault("grammar", OWN)
    if values.get("grammar") == OWN:
        if own is None:
            raise DerbyError(f"{text!r} asks for a grammar of your own: name its file.")
        values["grammar"] = own
    return STRATEGIES[name].with_settings(values)
