"""What the torch engine runs and can do, for its declaration and for the engine itself."""

from backend.types import Capabilities

#: Bytes that a weight takes, by precision.
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}

CAPABILITIES = Capabilities(hidden_states=True)

#: Of models whose cache takes no trees.
ONE_TOKEN = Capabilities(one_token=True)
