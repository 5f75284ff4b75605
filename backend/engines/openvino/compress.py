"""Smaller weights for an OpenVINO model: rounded to int8 or int4, or the codes that they were
published in.

Weights that were quantised once (the built-in model's were) still lie on a grid: every 16 or 32 in
a row are (code - zero) * scale with few codes. Quantising them anew would round a second time, and
on the built-in model changes every fourth greedy token; reading the codes off the grid changes
nothing.
"""

import logging
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.openvino.refusal import RefusedError

if TYPE_CHECKING:
    import openvino as ov

#: Below this many weights a scale, rounding to int4 costs more than it saves.
SMALLEST_GROUP = 32

#: Groups that are looked at first: weights that lie on no grid are known by these.
SAMPLE = 512

#: Weights may differ by this share of their group's largest: zero and product round once each in
#: float32. Of weights that lie on no grid, no group of 16 comes so near to one by chance.
LAST_PLACE = np.float32(2**-22)


@dataclass(frozen=True, slots=True)
class Codes:
    """A weight matrix [O, I] as (values - zero) * scale, in groups along I.

    `values` uint8 [O, I / group, group] below 2**bits; `zero` float32 [O or 1, I / group or 1, 1];
    `scale` float32 [O, I / group, 1].
    """

    bits: int
    values: NDArray[np.uint8]
    zero: NDArray[np.float32]
    scale: NDArray[np.float32]

    def weight(self) -> NDArray[np.float32]:
        """What they stand for, [O, I], computed as the plugin does."""
        real = (self.values.astype(np.float32) - self.zero) * self.scale
        return real.reshape(len(real), -1)


@dataclass(frozen=True, slots=True)
class Grid:
    """A kind of grid: `bits` a code, `group` weights a scale, `steps` between the outermost codes.

    A symmetric one has its zero in the middle of the codes, and gives its weights back bit for bit;
    any other has an offset for each group, and gives them back but for LAST_PLACE.
    """

    bits: int
    group: int
    symmetric: bool
    steps: int

    def codes(self, weight: NDArray[np.float32]) -> Codes | None:
        """The codes of `weight` [O, I] on such a grid, or None if it does not lie on one."""
        if weight.shape[1] % self.group:
            return None
        groups = weight.reshape(-1, self.group)
        if self._fit(groups[:: -(-len(groups) // SAMPLE)]) is None:
            return None
        found = self._fit(groups)
        if found is None:
            return None
        values, zero, scale = found
        rows = len(weight)
        return Codes(
            self.bits,
            values.reshape(rows, -1, self.group),
            zero[:1, None] if self.symmetric else zero.reshape(rows, -1, 1),
            scale.reshape(rows, -1, 1),
        )

    def _fit(
        self, groups: NDArray[np.float32]
    ) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]] | None:
        """Values, zeros and scales of groups [n, group], or None if one of them does not fit.

        Which codes a group's outermost weights have is not known, only that few come into
        question: each number of steps is tried on the groups that have not fitted yet.
        """
        values = np.zeros(groups.shape, dtype=np.uint8)
        zero, scale = np.zeros((2, len(groups), 1), dtype=np.float32)
        left = np.arange(len(groups))
        for steps in range(self.steps, 0, -1):
            some = groups[left]
            at, by = self._symmetric(some, steps) if self.symmetric else _offset(some, steps)
            codes = np.rint(some / by + at)
            back = (codes - at) * by
            slack = 0 if self.symmetric else LAST_PLACE * np.abs(some).max(1, keepdims=True)
            fits = np.all(
                (np.abs(back - some) <= slack) & (codes >= 0) & (codes < 2**self.bits), axis=1
            )
            done = left[fits]
            values[done], zero[done], scale[done] = codes[fits], at[fits], by[fits]
            left = left[~fits]
            if not left.size:
                return values, zero, scale
        return None

    def _symmetric(
        self, groups: NDArray[np.float32], steps: int
    ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Zero and scale if the weight farthest from 0 lies `steps` below the middle code.

        Below, because there is one code more on that side; the scale's sign puts it there. Dividing
        finds the very scale again: a scale of 19 bits at most (a half, times a whole number of 8
        bits in GGUF's Q6_K) times a code is exact in float32.
        """
        far = np.take_along_axis(groups, np.abs(groups).argmax(1, keepdims=True), 1)
        zero = np.full_like(far, 2.0 ** (self.bits - 1))
        return zero, _or_one(far / np.float32(-steps))


def _offset(
    groups: NDArray[np.float32], steps: int
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Zero and scale if the smallest weight has code 0 and the largest code `steps`."""
    low = groups.min(1, keepdims=True)
    span = groups.max(1, keepdims=True) - low
    # Q4_1 and Q5_1 state the scale in half precision; where the offset is large beside it, that
    # rounding finds it better than the difference of two weights does.
    half = (span / np.float32(steps)).astype(np.float16).astype(np.float32)
    near = np.abs(half * np.float32(steps) - span) <= LAST_PLACE * np.abs(groups).max(
        1, keepdims=True
    )
    scale = _or_one(np.where(near, half, span / np.float32(steps)))
    return -low / scale, scale


def _or_one(scale: NDArray[np.float32]) -> NDArray[np.float32]:
    """1 where a group has a single value and needs no scale."""
    return np.where(scale == 0, np.float32(1), scale)


#: Grids that weights are published on, those that are multiplied from fastest first; in GGUF:
#: Q4_0; Q4_1, Q4_K; Q3_K; Q2_K.
FOUR_BITS = (
    Grid(4, 32, symmetric=True, steps=8),
    Grid(4, 32, symmetric=False, steps=15),
    Grid(4, 16, symmetric=True, steps=8),
    Grid(4, 16, symmetric=False, steps=3),
)

#: Q5_0 and Q8_0, IQ4_NL, MXFP4; Q6_K; Q5_1, Q5_K; and any two of all these, where projections of
#: different formats were merged into one matrix.
EIGHT_BITS = (
    Grid(8, 32, symmetric=True, steps=128),
    Grid(8, 16, symmetric=True, steps=128),
    Grid(8, 32, symmetric=False, steps=31),
    Grid(8, 16, symmetric=False, steps=255),
)


def codes_on_grid(weight: NDArray[np.float32], bits: int = 4) -> Codes | None:
    """The codes of at least so many bits that give back `weight` [O, I], or None if it lies on no
    such grid.
    """
    grids = FOUR_BITS + EIGHT_BITS if bits == 4 else EIGHT_BITS
    found = (grid.codes(weight) for grid in grids) if weight.dtype == np.float32 else ()
    return next((codes for codes in found if codes is not None), None)


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
    """Codes of `bits` (4 or 8) for what lies on such a grid, and of 8 for what lies on a finer one.
    Consumes `model`. Raises RefusedError if a matrix lies on none, or none on one of 4 bits.
    """
    codes: dict[str, Codes] = {}
    for constant in _matrices(model):
        name = constant.get_friendly_name()
        found = codes[name] if name in codes else codes_on_grid(constant.data, bits)
        if found is None:
            raise RefusedError(
                f"int{bits}-exact is for weights that were published in 4- or 8-bit codes, as in "
                f"most GGUF files, and this model's matrix {name:.80} was not: choose fp32, or "
                f"int{bits}, which rounds."
            )
        codes[name] = found
    if bits not in {found.bits for found in codes.values()}:
        raise RefusedError("None of this model's weights lie on a 4-bit grid: choose int8-exact.")
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
        raise RefusedError(
            f"int4 needs weight matrices whose width is a multiple of {SMALLEST_GROUP}, and this "
            f"model's are {', '.join(map(str, sorted(widths)))} wide: choose int8."
        )
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
