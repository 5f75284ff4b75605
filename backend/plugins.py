"""Declarations that other installed packages bring by their entry points.

A plug-in that cannot be imported, or declares something else, is one line of the log: never an
error of the app.
"""

import logging
from collections.abc import Iterable
from importlib.metadata import entry_points
from typing import Any

log = logging.getLogger(__name__)


def load_declared(group: str, kind: type[Any], ours: Iterable[Any]) -> dict[str, Any]:
    """The declarations by name, `ours` first, then those of the entry points of `group`.

    Each entry point must name an instance of `kind` whose name is not taken, or is left out with a
    warning. Raises nothing.
    """
    declared = {declaration.name: declaration for declaration in ours}
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value)):
        try:
            declaration = entry.load()
        except (Exception, SystemExit) as error:
            line = str(error).strip().partition("\n")[0].rstrip(".")
            reason = f"{type(error).__name__}: {line}"
        else:
            if not isinstance(declaration, kind):
                reason = f"no {kind.__name__}"
            elif declaration.name in declared:
                reason = f"{declaration.name!r} is taken"
            else:
                declared[declaration.name] = declaration
                continue
        package = f"{entry.dist.name} {entry.dist.version}, " if entry.dist else ""
        words = "The plug-in %r (%s%s) cannot be loaded (%s): repair or uninstall it."
        log.warning(words, entry.name, package, entry.value, reason)
    return declared
