"""python -m backend setup."""

from backend.cli.console import say
from backend.engines.openvino.export import openvino_ir
from backend.types import ModelSpec


def setup() -> None:
    """Fetch the built-in model and make its fp32 and int4 IR. Raises DerbyError for what cannot be
    had.
    """
    for precision in ("fp32", "int4"):
        openvino_ir(ModelSpec(precision=precision), say)
    say("Everything is ready.")
