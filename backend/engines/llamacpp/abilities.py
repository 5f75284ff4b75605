"""What the llama.cpp engine runs and can do, for its declaration and for the engine itself."""

from importlib.util import find_spec

from backend.types import Capabilities

#: The package whose library is bound, and its version: another has other structures.
PACKAGE, VERSION = "xllamacpp", "2026.10.11549"

#: The file's own weights, as llama.cpp computes them by default.
AS_IT_IS = "gguf"

#: Where all of its layers run. The package has been tried on the CPU alone.
CPU, GPU = "CPU", "GPU"

CAPABILITIES = Capabilities()


def installed() -> bool:
    """Whether the package is there, of whatever version."""
    return find_spec(PACKAGE) is not None
