"""An independent judge of SQL texts: sqlglot."""

import sys

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

#: sqlglot recurses some twenty frames a bracket; how deep a text nests is not what is judged.
_FRAMES = 20_000


def parse_sql(text: str) -> None:
    """Raises ValueError unless sqlglot reads the text as exactly one statement that it knows."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _FRAMES))
    try:
        statements = sqlglot.parse(text)
    except SqlglotError as error:
        raise ValueError(f"sqlglot refuses {text!r}: {error}") from error
    finally:
        sys.setrecursionlimit(limit)
    if len(statements) != 1 or statements[0] is None:
        raise ValueError(f"{text!r} is not exactly one statement")
    if isinstance(statements[0], exp.Command):
        # What sqlglot does not understand it passes on unread.
        raise ValueError(f"sqlglot does not know the statement {text!r}")  # noqa: TRY004
