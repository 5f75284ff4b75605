"""An independent judge of Python texts: the interpreter's own parser."""

import ast
import warnings


def parse_python(text: str) -> None:
    """Raises ValueError if the text is not a Python module."""
    with warnings.catch_warnings():
        # Doubtful escapes and literals only warn; an error here would hide which they are.
        warnings.simplefilter("ignore")
        try:
            ast.parse(text)
        except SyntaxError as error:
            raise ValueError(f"Python refuses {text!r}: {error}") from error
