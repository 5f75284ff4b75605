"""Refuses grammars in which a text, once begun, could never end, before decoding begins.

llguidance compiles `list: "x" list` without complaint, and would let a model write x for ever.
"""

from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from backend.errors import DerbyError
from backend.grammar.fixpoints import least
from backend.grammar.lark.rules import Rule, Symbol, read_rules
from backend.grammar.messages import Part, fault


def require_productive(parts: Sequence[Part]) -> None:
    """Raise DerbyError, with the place, if some text of linked grammars could never end.

    That happens if a rule that derives no text can be reached, at the start or after a character. A
    rule that is never reached, or that takes no character, is accepted. `parts` have been compiled;
    what is malformed or unknown counts as able to end.
    """
    rules = read_rules(parts)
    if not rules:
        return
    ends = least(
        [
            (number, [s.rule for s in sequence if s.rule is not None])
            for number, rule in enumerate(rules)
            for sequence in rule.alternatives
            if all(s.ends for s in sequence)
        ]
    )
    if 0 not in ends:
        raise _error(rules, rules[0], Symbol(rules[0].at, 0), ends)
    writes = _writing(rules, ends)
    for number in _reached(rules, ends):
        for sequence in rules[number].alternatives:
            stop = _stop(sequence, ends)
            if any(_holds(s, writes, of_text=s.writes) for s in sequence[:stop]):
                for dead in sequence[stop : stop + 1]:
                    raise _error(rules, rules[number], dead, ends)


def _holds(symbol: Symbol, rules: AbstractSet[int], *, of_text: bool) -> bool:
    return of_text if symbol.rule is None else symbol.rule in rules


def _stop(sequence: Sequence[Symbol], ends: AbstractSet[int]) -> int:
    """The position of the first symbol that derives no text; the length if there is none."""
    dead = (i for i, s in enumerate(sequence) if not _holds(s, ends, of_text=s.ends))
    return next(dead, len(sequence))


def _writing(rules: Sequence[Rule], ends: AbstractSet[int]) -> set[int]:
    """The rules that derive a text with a character in it."""
    complete = [
        (number, sequence)
        for number, rule in enumerate(rules)
        for sequence in rule.alternatives
        if _stop(sequence, ends) == len(sequence)
    ]
    return least(
        [
            (number, [] if symbol.rule is None else [symbol.rule])
            for number, sequence in complete
            for symbol in sequence
            if symbol.rule is not None or symbol.writes
        ]
    )


def _reached(rules: Sequence[Rule], ends: AbstractSet[int]) -> list[int]:
    """The rules that a text can reach. Nothing can be reached past a symbol that derives
    no text.
    """
    found = [0]
    seen = {0}
    for number in found:
        for sequence in rules[number].alternatives:
            for symbol in sequence[: _stop(sequence, ends) + 1]:
                if symbol.rule is not None and symbol.rule not in seen:
                    seen.add(symbol.rule)
                    found.append(symbol.rule)
    return found


def _error(rules: Sequence[Rule], rule: Rule, dead: Symbol, ends: AbstractSet[int]) -> DerbyError:
    """The error that names the rule or the terminal for which `dead`, in `rule`, has no text."""
    named = rule
    seen: set[int] = set()
    while dead.rule is not None and dead.rule not in seen:
        seen.add(dead.rule)
        rule = rules[dead.rule]
        named = rule if rule.name else named
        sequence = rule.alternatives[0]
        dead = sequence[_stop(sequence, ends)]
    if dead.rule is None:
        return fault(rule.part, dead.at.line, dead.at.column, f"no text matches {dead.at.text!r}")
    part = named.part
    name = "root" if part.source.kind == "gbnf" and named.name == "start" else named.name
    why = f"no text of {name!r} ever ends: give it an alternative that does not lead back to it"
    return fault(part, named.at.line, named.at.column, why)
