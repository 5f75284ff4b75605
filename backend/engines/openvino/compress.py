"""Smaller weights for an OpenVINO model: int8, and int4 that is exact where the weights allow it.

Weights that were 4-bit once (the built-in model's were) still lie on a grid: every 32 in a row are
code * scale + low with 16 codes. Quantising them anew would round a second time, and on the
built-in model changes every fourth greedy token; reading the codes off the grid changes nothing.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from backend.errors import DerbyError

if TYPE_CHECKING:
    import openvino as ov

#: Weights that share one scale in the grids that are recognised (GGUF's Q4_1 and Q8_0).
GROUP = 32

#: Below this many weights a scale, int4 costs more than it saves.
SMALLEST_GROUP = 32


@dataclass(frozen=True, slots=True)
class Codes:
    """A weight matrix [O, I] as (values - zero) * scale, in groups along I.

    `values` uint8 [O, I / GROUP, GROUP] below 2**bits; `zero` float32 [O or 1, I / GROUP or 1, 1];
    `scale` float32 [O, I / GROUP, 1].
    """

    bits: int
    values: NDArray[np.uint8]
    zero: NDArray[np.float32]
    scale: NDArray[np.float32]


def int8(model: "ov.Model") -> "ov.Model":
    """8 bits a weight, one scale and zero point a row. Consumes `model`."""
    import nncf

    return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)


def int4(model: "ov.Model") -> "ov.Model":
    """4 bits a weight, 8 for the output projection. Consumes `model`.

    Exact if every matrix lies on a 4- or 8-bit grid, otherwise rounded by NNCF in groups of 128 or
    the largest smaller power of two that fits; matrices that no group of SMALLEST_GROUP divides
    get 8 bits. Raises DerbyError where that is all of them.
    """
    codes: dict[str, Codes] = {}
    for constant in _matrices(model):
        found = codes_on_grid(constant.data)
        if found is None:
            return _rounded_int4(model)
        codes[constant.get_friendly_name()] = found
    for constant in list(_matrices(model)):
        # A matrix that two products share is replaced in both at its first turn.
        _replace(constant, codes[constant.get_friendly_name()])
    model.validate_nodes_and_infer_types()
    return model


def codes_on_grid(weight: NDArray[np.float32]) -> Codes | None:
    """The codes that give back `weight` [O, I] bit for bit, or None where there are none."""
    if weight.dtype != np.float32 or weight.shape[1] % GROUP:
        return None
    groups = weight.reshape(len(weight), -1, GROUP)
    return _four_bits(groups) or _eight_bits(groups)


def _four_bits(groups: NDArray[np.float32]) -> Codes | None:
    """Q4_1's grid: weight = code * scale + low, scale in half precision, codes 0 to 15."""
    low = groups.min(-1, keepdims=True)
    scale = _half((groups.max(-1, keepdims=True) - low) / 15)
    values = np.rint((groups - low) / scale)
    if values.max() > 15 or not np.array_equal(values * scale + low, groups):
        return None
    return Codes(4, values.astype(np.uint8), -low / scale, scale)


def _eight_bits(groups: NDArray[np.float32]) -> Codes | None:
    """Q8_0's grid: weight = code * scale, scale in half precision, codes -127 to 127."""
    scale = _half(np.abs(groups).max(-1, keepdims=True) / 127)
    values = np.rint(groups / scale)
    if np.abs(values).max() > 127 or not np.array_equal(values * scale, groups):
        return None
    zero = np.full((1, 1, 1), 128, dtype=np.float32)
    return Codes(8, (values + 128).astype(np.uint8), zero, scale)


def _half(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scales rounded to half precision; 1 where a group has a single value and needs none."""
    rounded = scale.astype(np.float16).astype(np.float32)
    return np.where(rounded == 0, np.float32(1), rounded)


def _replace(constant: "ov.op.Constant", codes: Codes) -> None:
    """Have every reader of `constant` read the decompressed codes instead.

    The CPU plugin recognises this chain and multiplies from the codes.
    """
    import openvino as ov
    from openvino import opset13 as ops

    kind, packed = ov.Type.u8, codes.values.reshape(-1)
    if codes.bits == 4:
        kind, packed = ov.Type.u4, packed[0::2] | packed[1::2] << 4
    tensor = ov.Tensor(kind, ov.Shape(list(codes.values.shape)))
    tensor.data.reshape(-1)[:] = packed
    real = ops.convert(ov.op.Constant(tensor), "f32")
    centred = ops.subtract(real, ops.constant(codes.zero))
    scaled = ops.multiply(centred, ops.constant(codes.scale))
    shape = ops.constant(list(constant.output(0).get_shape()))
    weight = ops.reshape(scaled, shape, special_zero=False)
    for reader in constant.output(0).get_target_inputs():
        reader.replace_source_output(weight.output(0))


def _rounded_int4(model: "ov.Model") -> "ov.Model":
    import nncf

    widths = {constant.output(0).get_shape()[1] for constant in _matrices(model)}
    fitting = [width for width in widths if width % SMALLEST_GROUP == 0]
    if not fitting:
        raise DerbyError(
            f"int4 needs weight matrices whose width is a multiple of {SMALLEST_GROUP}, and this "
            f"model's are {', '.join(map(str, sorted(widths)))} wide: choose int8."
        )
    # Not all matrices are among those: a mixture's experts are 3-D.
    adjusting = nncf.AdvancedCompressionParameters(
        group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST,
        min_adjusted_group_size=SMALLEST_GROUP,
    )
    return nncf.compress_weights(
        model,
        mode=nncf.CompressWeightsMode.INT4_SYM,
        group_size=math.gcd(128, *fitting),
        ratio=1.0,
        advanced_parameters=adjusting,
    )


def _matrices(model: "ov.Model") -> Iterator["ov.op.Constant"]:
    """The constant [O, I] of every product with a weight matrix."""
    for node in model.get_ops():
        if node.get_type_name() == "MatMul" and node.get_attributes()["transpose_b"]:
            weight = node.input(1).get_source_output()
            if weight.get_node().get_type_name() == "Constant" and len(weight.get_shape()) == 2:
                yield weight.get_node()


COMPRESSORS: dict[str, Callable[["ov.Model"], "ov.Model"]] = {"int8": int8, "int4": int4}
