"""python -m backend setup."""

from backend.cli.console import say


def setup() -> None:
    """Fetch and convert everything that the app needs, once."""
    from backend.engines.openvino.export import prepare_all

    prepare_all(say)
    say("Everything is prepared.")
