"""What must lie on disk before races, and can be made beforehand."""

from collections.abc import Callable, Iterable

from backend.models.hub import HUB_ID, hub_folder
from backend.types import ModelSpec


def prepare_all(say: Callable[[str], None]) -> None:
    """Make the built-in model's fp32 and int4 IR; `say` hears what takes long. Raises DerbyError
    for what cannot be had.
    """
    from backend.engines.openvino.export import openvino_ir

    for precision in ("fp32", "int4"):
        openvino_ir(ModelSpec(precision=precision), say)


def fetch_offered(models: Iterable[str], say: Callable[[str], None]) -> None:
    """Fetch those of `models` that are the Hub's. Raises DerbyError for what cannot be had."""
    for name in filter(HUB_ID.fullmatch, models):
        hub_folder(name, say)
