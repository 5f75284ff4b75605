"""What the OpenVINO engine runs and can do, for its declaration and for the engine itself."""

from backend.types import Capabilities

#: Bytes that a weight takes, by precision: int8 with one scale and zero point a row; int4 with one
#: in every 32 at the least, and 8 bits for the output projection.
BYTES = {"fp32": 4.0, "int8": 1.02, "int4": 0.8}

CAPABILITIES = Capabilities(tree=True, hidden_states=True)
