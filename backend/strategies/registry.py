"""All strategies: ours, and those of other packages."""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from backend.models.files import is_gguf
from backend.plugins import load_declared
from backend.strategies.declaration import Strategy
from backend.strategies.libraries import LLAMACPP, OPENVINO_GENAI, SERVER, TRANSFORMERS
from backend.strategies.ours import GRAMMAR, KV_REUSE, LOOKAHEAD, LOOKUP, SPECULATIVE, STATELESS

BASELINE = KV_REUSE.name

OURS = (
    STATELESS,
    KV_REUSE,
    SPECULATIVE,
    LOOKAHEAD,
    GRAMMAR,
    LOOKUP,
    TRANSFORMERS,
    OPENVINO_GENAI,
    LLAMACPP,
    SERVER,
)

GROUP = "decode_derby.strategies"

DEFAULT_COLUMNS = ("stateless", "kv", "speculative", "lookahead", "grammar:grammar=contact")
GGUF_COLUMNS = ("llamacpp", "llamacpp:spec=ngram-simple", "llamacpp:spec=ngram-mod")


def usual_columns(model: str) -> tuple[str, ...]:
    """The line-up of a race on the model of that name; the first plain column of it is a baseline
    that the model can run.
    """
    return GGUF_COLUMNS if is_gguf(model) else DEFAULT_COLUMNS


@cache
def strategies() -> Mapping[str, Strategy]:
    """Every strategy by name, ours first."""
    return MappingProxyType(load_declared(GROUP, Strategy, OURS))
