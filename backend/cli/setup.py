"""python -m backend setup."""

from backend.cli.console import say
from backend.racing.preparation import prepare_all


def setup() -> None:
    prepare_all(say)
    say("Everything is ready.")
