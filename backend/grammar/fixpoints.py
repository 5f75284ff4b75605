"""Fixpoints of clauses: a head holds if all of its body's atoms do. Linear in the clauses."""

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Sequence
from typing import TypeVar

Atom = TypeVar("Atom", bound=Hashable)


def least(clauses: Sequence[tuple[Atom, Collection[Atom]]]) -> set[Atom]:
    """The atoms that can be shown to hold in finitely many steps."""
    using: defaultdict[Atom, list[int]] = defaultdict(list)
    missing: list[int] = []
    done: set[Atom] = set()
    for number, (head, body) in enumerate(clauses):
        atoms = set(body)
        missing.append(len(atoms))
        for atom in atoms:
            using[atom].append(number)
        if not atoms:
            done.add(head)
    holding = list(done)
    for atom in holding:
        for number in using[atom]:
            missing[number] -= 1
            head = clauses[number][0]
            if not missing[number] and head not in done:
                done.add(head)
                holding.append(head)
    return done


def greatest(clauses: Sequence[tuple[Atom, Collection[Atom]]]) -> set[Atom]:
    """Those of `least`, and those that hold if they are taken to."""
    using: defaultdict[Atom, list[int]] = defaultdict(list)
    ways = Counter(head for head, _ in clauses)
    for number, (_, body) in enumerate(clauses):
        for atom in set(body):
            using[atom].append(number)
    failed = [atom for atom in using if not ways[atom]]
    broken: set[int] = set()
    for atom in failed:
        for number in using[atom]:
            if number in broken:
                continue
            broken.add(number)
            head = clauses[number][0]
            ways[head] -= 1
            if not ways[head]:
                failed.append(head)
    return {atom for atom, left in ways.items() if left}
