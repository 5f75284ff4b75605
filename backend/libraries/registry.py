"""The libraries there are."""

from collections.abc import Mapping

from backend.engines.declaration import EngineDeclaration
from backend.engines.registry import engine_named
from backend.libraries.library import Library
from backend.libraries.llamacpp import LLAMACPP
from backend.libraries.openvino_genai import OPENVINO_GENAI
from backend.libraries.transformers import TRANSFORMERS

LIBRARIES: Mapping[str, Library] = {
    each.name: each for each in (TRANSFORMERS, OPENVINO_GENAI, LLAMACPP)
}


def declared(name: str) -> EngineDeclaration:
    """What runs a model whose spec names it: an engine of ours, or a library. Raises DerbyError for
    an unknown name.
    """
    library = LIBRARIES.get(name)
    if library is not None and library.declaration is not None:
        return library.declaration
    return engine_named(name)
