"""What the OpenVINO engine runs and can do, for its declaration and for the engine itself."""

from backend.types import Capabilities

#: Bytes that a weight takes, by precision: int8 with one scale and zero point a row; int4 with one
#: in every 32 at the least, and 8 bits for the output projection; the exact ones with a scale and a
#: zero of 32 bits for every 16 or 32, at the most.
BYTES = {"fp32": 4.0, "int8": 1.02, "int4": 0.8, "int4-exact": 1.0, "int8-exact": 1.5}

#: Those in which a row's logits do not depend on how many rows ran with it: float32 arithmetic.
EXACT_PRECISIONS = ("fp32", "int4-exact", "int8-exact")

#: Logits of a row must not depend on how many rows ran with it. At the defaults (bf16 inference,
#: quantised cache, activations quantised on the fly) they do, and texts would differ.
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
}

CAPABILITIES = Capabilities(hidden_states=True)
