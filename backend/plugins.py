"""Declarations that other installed packages bring by their entry points.

A plug-in that cannot be imported, or declares something else, is one sentence among the problems:
never an error of the app.
"""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol, TypeVar


class Declaration(Protocol):
    @property
    def name(self) -> str: ...


Declared = TypeVar("Declared", bound=Declaration)


def load_declared(
    group: str, kind: type[Declared], ours: Iterable[Declared] = ()
) -> tuple[dict[str, Declared], tuple[str, ...]]:
    """The declarations by name, `ours` first, then those of the entry points of `group`.

    Each entry point must name an instance of `kind` whose name is not taken. Returns with them a
    sentence on each that was left out. Raises nothing.
    """
    declared = {declaration.name: declaration for declaration in ours}
    problems: list[str] = []
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)):
        try:
            declaration = entry.load()
        except (Exception, SystemExit) as error:
            reason = str(error).strip().partition("\n")[0]
            problems.append(_left_out(entry, f"{type(error).__name__}: {reason}"))
            continue
        if not isinstance(declaration, kind):
            problems.append(_left_out(entry, f"no {kind.__name__}"))
        elif declaration.name in declared:
            problems.append(_left_out(entry, f"{declaration.name!r} is taken"))
        else:
            declared[declaration.name] = declaration
    return declared, tuple(problems)


def _left_out(entry: EntryPoint, reason: str) -> str:
    source = f"{entry.dist.name} {entry.dist.version}, " if entry.dist else ""
    return (
        f"The plug-in {entry.name!r} ({source}{entry.value}) cannot be loaded ({reason.rstrip('.')}"
        "): repair or uninstall it."
    )
