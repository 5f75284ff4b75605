"""python -m backend setup."""

from backend.cli.console import say


def setup() -> None:
    from backend.engines.openvino.export import prepare_all

    prepare_all(say)
    say("Everything is prepared.")
