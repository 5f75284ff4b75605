"""The browser behind a visitor: whoever reloads the page is another visitor of the same browser."""

_SEPARATOR = "."


def visitor_named(browser: str, session: str) -> str:
    """The visitor who holds this session of the browser. Neither name has a dot."""
    return f"{browser}{_SEPARATOR}{session}"


def browser_of(visitor: str) -> str:
    """The browser's name; a visitor of whom no browser is known is one of their own."""
    return visitor.partition(_SEPARATOR)[0]
