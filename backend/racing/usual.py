"""The precision of a model for which none was named: by its size, and why."""

from dataclasses import replace

from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.models.files import BUILT_IN, Say
from backend.types import ModelSpec

#: Bytes of weights from which on a model is large: an engine's second precision is its usual one.
LARGE = 1e9


def size(count: float) -> str:
    """Bytes, as sentences tell them."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def usual_spec(spec: ModelSpec, say: Say) -> ModelSpec:
    """The model at its engine's first precision, or, if its weights would take more than LARGE
    bytes, at the second, as `say` is told. Fetches a model of the Hub.

    One that cannot be had stays as it is: its columns tell. Raises DerbyError for an unknown
    engine.
    """
    declared = engine_named(spec.engine)
    first = replace(spec, precision=declared.precisions[0])
    if spec.name == BUILT_IN or declared.models or len(declared.precisions) < 2:
        return first
    second = replace(spec, precision=declared.precisions[1])
    try:
        whole, less = (declared.estimate_bytes(each, say) for each in (first, second))
    except DerbyError:
        return first
    if whole <= LARGE or less >= whole:
        return first
    say(
        f"{spec.name} would take {size(whole)} at {first.precision}: it runs at "
        f"{second.precision}, {size(less)}, where columns may differ in near ties; "
        f"--precision {first.precision} rules that out."
    )
    return second
