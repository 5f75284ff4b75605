"""Smaller weights for an OpenVINO model: rounded to int8 or int4, or the codes that the built-in
model's were published in.

Its weights still lie on two grids: every 32 in a row are (code - zero) * scale with codes of four
bits (GGUF's Q4_1), or code * scale with codes of eight (Q8_0, the output projection). Quantising
them anew would round a second time, and changes every fourth greedy token; reading the codes off
the grid changes nothing.
"""

import logging
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.openvino.conversion import RefusedError

if TYPE_CHECKING:
    import openvino as ov

#: Below this many weights a scale, rounding to int4 costs more than it saves.
SMALLEST_GROUP = 32

#: Weights that share a scale.
GROUP = 32

#: Weights may differ by this share of their group's largest: zero and product round once each in
#: float32. Of weights that lie on no grid, no group comes so near to one by chance.
LAST_PLACE = np.float32(2**-22)

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Codes:
    """A weight matrix [O, I] as (values - zero) * scale, in groups of GROUP along I.

    `values` uint8 [O, I / GROUP, GROUP] below 2**bits; `zero` float32 [O, I / GROUP, 1] or
    [1, 1, 1]; `scale` float32 [O, I / GROUP, 1].
    """

    bits: int
    values: NDArray[np.uint8]
    zero: Floats
    scale: Floats

    def weight(self) -> Floats:
        """What they stand for, [O, I], computed as the plugin does."""
        real = (self.values.astype(np.float32) - self.zero) * self.scale
        return real.reshape(len(real), -1)


def codes_on_grid(weight: Floats) -> Codes | None:
    """The codes that give back `weight` [O, I], or None if it lies on neither grid."""
    if weight.dtype != np.float32 or weight.shape[1] % GROUP:
        return None
    groups = weight.reshape(len(weight), -1, GROUP)
    for bits, grid in ((4, _offset), (8, _around_zero)):
        if _fitted(groups[:1], bits, *grid(groups[:1])) is not None:  # most are known by one row
            codes = _fitted(groups, bits, *grid(groups))
            if codes is not None:
                return codes
    return None


def _fitted(groups: Floats, bits: int, zero: Floats, scale: Floats) -> Codes | None:
    values = np.rint(groups / scale + zero)
    slack = LAST_PLACE * np.abs(groups).max(-1, keepdims=True) * (bits == 4)
    fits = (np.abs((values - zero) * scale - groups) <= slack) & (values >= 0) & (values < 2**bits)
    return Codes(bits, values.astype(np.uint8), zero, scale) if fits.all() else None


def _offset(groups: Floats) -> tuple[Floats, Floats]:
    """Zeros and scales where the smallest weight of a group has code 0 and the largest 15."""
    low = groups.min(-1, keepdims=True)
    span = groups.max(-1, keepdims=True) - low
    # The scale was stated in half precision; where the offset is large beside it, that rounding
    # finds it better than the difference of two weights does.
    half = (span / np.float32(15)).astype(np.float16).astype(np.float32)
    near = np.abs(half * 15 - span) <= LAST_PLACE * np.abs(groups).max(-1, keepdims=True)
    scale = _or_one(np.where(near, half, span / np.float32(15)))
    return -low / scale, scale


def _around_zero(groups: Floats) -> tuple[Floats, Floats]:
    """Zeros and scales where the weight farthest from 0 lies 127 codes from the middle one.
    Dividing finds the very scale again: one of half precision times a code is exact in float32.
    """
    scale = _or_one(np.abs(groups).max(-1, keepdims=True) / np.float32(127))
    return np.full((1, 1, 1), 128, np.float32), scale


def _or_one(scale: Floats) -> Floats:
    """1 where a group has a single value and needs no scale."""
    return np.where(scale == 0, np.float32(1), scale)


def int8(model: "ov.Model") -> "ov.Model":
    """8 bits a weight, one scale and zero point a row. Consumes `model`."""
    with silent_nncf() as nncf:
        return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)


@contextmanager
def silent_nncf() -> Iterator[Any]:
    """The module, without the statistics and progress bars that it writes to standard output, where
    a result may be piped from.
    """
    with redirect_stdout(sys.stderr):
        import nncf

        # Its own set_log_level() would silence handlers that others share.
        logging.getLogger("nncf").setLevel(logging.ERROR)
        yield nncf


def exact(model: "ov.Model", bits: int) -> "ov.Model":
    """The codes that the weights were published in, stored in `bits` (4 or 8) where they fit.
    Consumes `model`. Raises RefusedError if a matrix lies on no grid, or none on that of 4 bits.
    """
    codes: dict[str, Codes] = {}
    for constant in _matrices(model):
        name = constant.get_friendly_name()
        found = codes[name] if name in codes else codes_on_grid(constant.data)
        if found is None:
            raise _unfit(f"int{bits}-exact")
        codes[name] = replace(found, bits=max(bits, found.bits))
    if bits not in {found.bits for found in codes.values()}:
        raise _unfit(f"int{bits}-exact")
    for constant in list(_matrices(model)):
        # A matrix that two products share is replaced in both at its first turn.
        _replace(constant, codes[constant.get_friendly_name()])
    model.validate_nodes_and_infer_types()
    return model


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


def int4(model: "ov.Model") -> "ov.Model":
    """4 bits a weight, 8 for the output projection. Consumes `model`.

    Rounded by NNCF in groups of 128 or the largest smaller power of two that fits; matrices that
    no group of SMALLEST_GROUP divides get 8 bits. Raises RefusedError where that is all of them.
    """
    widths = {constant.output(0).get_shape()[1] for constant in _matrices(model)}
    fitting = [width for width in widths if width % SMALLEST_GROUP == 0]
    if not fitting:
        raise _unfit("int4")
    with silent_nncf() as nncf:
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


def _unfit(precision: str) -> RefusedError:
    return RefusedError(f"This model's weights do not fit in {precision}: choose fp32 or int8.")


def _matrices(model: "ov.Model") -> Iterator["ov.op.Constant"]:
    """The constant [O, I] of every product with a weight matrix."""
    for node in model.get_ops():
        if node.get_type_name() == "MatMul" and node.get_attributes()["transpose_b"]:
            weight = node.input(1).get_source_output()
            if weight.get_node().get_type_name() == "Constant" and len(weight.get_shape()) == 2:
                yield weight.get_node()


#: By precision. The exact ones have float32 arithmetic as well: equal columns write equal texts.
COMPRESSORS: dict[str, Callable[["ov.Model"], "ov.Model"]] = {
    "int8": int8,
    "int4": int4,
    "int4-exact": partial(exact, bits=4),
    "int8-exact": partial(exact, bits=8),
}
