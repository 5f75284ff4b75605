"""The precision of a model for which none was named: by its size, and why."""

from dataclasses import replace

from backend.engines.registry import engine_named
from backend.errors import DerbyError
from backend.machine import computes_bf16
from backend.models.files import BUILT_IN, Say, is_ready_made, model_folder, stored_precision
from backend.types import ModelSpec

#: Bytes of weights from which on a model is large: an engine's second precision is its usual one.
LARGE = 1e9


def size(count: float) -> str:
    """Bytes, as sentences tell them."""
    return f"{count / 1e9:,.1f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def usual_spec(spec: ModelSpec, say: Say) -> ModelSpec:
    """The model at its usual precision, as the command line has it: see `usual_precision`."""
    chosen, why = usual_precision(spec, say)
    if why:
        first = engine_named(spec.engine).precisions[0]
        say(f"{why}: it runs at {chosen}, or at {first} with --precision {first}.")
    return replace(spec, precision=chosen)


def usual_precision(spec: ModelSpec, say: Say) -> tuple[str, str]:
    """The engine's first precision, or, if the model's weights would take more than LARGE bytes at
    that, the second, and why, a clause; "" for the first. That is bf16 only where the processor
    multiplies it: others are several times as slow then. Fetches a model of the Hub.

    One that cannot be had stays as it is: its columns tell. Raises DerbyError for an unknown
    engine.
    """
    declared = engine_named(spec.engine)
    first, *others = declared.precisions
    if spec.name == BUILT_IN or declared.models or not others:
        return first, ""
    if others[0] == "bf16" and spec.device == "CPU" and not computes_bf16():
        return first, ""
    names = (first, others[0])
    try:
        folder = model_folder(spec.name, say)
        if is_ready_made(folder) and (stored := stored_precision(folder)) != first:
            return stored, ""  # it runs as it is stored
        whole, less = (declared.estimate_bytes(replace(spec, precision=p), say) for p in names)
    except DerbyError:
        return first, ""
    if whole <= LARGE or less >= whole:
        return first, ""
    return others[0], (
        f"{spec.name} would take {size(whole)} at {first} and takes {size(less)} at {others[0]}, "
        "where columns may differ in near ties"
    )
