"""What becomes of weights: siblings multiply at once, and codes of few bits stand for them.

Query, key and value projections read the same rows, gate and up projections too: one wide product
beats several narrow ones by 6 to 13 % of a pass over one row on two cores. The built-in model keeps
the codes that it was published in: to quantise it anew would change every fourth greedy token.
"""

import logging
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import numpy as np

from backend.errors import DerbyError
from backend.models.builtin import Packed, built_in_codes
from backend.models.files import BUILT_IN, Say
from backend.types import ModelSpec

if TYPE_CHECKING:
    import openvino as ov


def merge_products(model: "ov.Model") -> "ov.Model":
    """Multiply by the weights [O, I] of sibling products at once and split what comes of it; each
    value is computed as before. Changes `model`, and gives it.

    Siblings belong to one module of the original ("layers.0.mlp") and read the same rows.
    """
    siblings: defaultdict[tuple[str, str, int], list[ov.Node]] = defaultdict(list)
    for node in model.get_ordered_ops():
        if (matrix := matrix_of(node)) and matrix.get_element_type().get_type_name() == "f32":
            module = node.get_friendly_name().partition("/")[0].rpartition(".")[0]
            source = node.input(0).get_source_output()
            siblings[module, source.get_node().get_name(), source.get_index()].append(node)
    for nodes in siblings.values():
        if len(nodes) > 1:
            _merge(nodes)
    model.validate_nodes_and_infer_types()
    return model


def matrix_of(node: "ov.Node") -> "ov.op.Constant | None":
    """The stored matrix [O, I] by which a node multiplies rows; None: it is no such product."""
    if node.get_type_name() != "MatMul":
        return None
    attributes, matrix = node.get_attributes(), node.input(1).get_source_output().get_node()
    stored = matrix.get_type_name() == "Constant" and len(matrix.get_output_shape(0)) == 2
    return (
        matrix if stored and attributes["transpose_b"] and not attributes["transpose_a"] else None
    )


def _merge(nodes: Sequence["ov.Node"]) -> None:
    from openvino import opset13 as ops

    constants = [node.input(1).get_source_output().get_node() for node in nodes]
    matrices = [constant.data for constant in constants]  # type: ignore[attr-defined]
    stacked = ops.constant(np.concatenate(matrices))
    stacked.set_friendly_name(" ".join(constant.get_friendly_name() for constant in constants))
    rows = nodes[0].input(0).get_source_output()
    product = ops.matmul(rows, stacked, transpose_a=False, transpose_b=True)
    product.set_friendly_name(f"{nodes[0].get_friendly_name()}/merged")
    lengths = ops.constant([len(matrix) for matrix in matrices])
    parts = ops.variadic_split(product, ops.constant(-1), lengths)
    for node, part in zip(nodes, parts.outputs(), strict=True):
        for reader in node.output(0).get_target_inputs():
            reader.replace_source_output(part)


#: Below this many weights a scale, rounding to int4 costs more than it saves.
SMALLEST_GROUP = 32

#: What optimum-intel puts before the name of a model's tensor.
PREFIX = "self."


def compressed(model: "ov.Model", spec: ModelSpec, say: Say) -> "ov.Model":
    """The fp32 `model` of `spec` with weights of its precision. Consumes `model`. Raises
    DerbyError where they do not fit.
    """
    bits = 4 if spec.precision.startswith("int4") else 8
    if spec.name == BUILT_IN and spec.precision != "int8":
        return exact(model, built_in_codes(say), bits)
    if spec.precision.endswith("-exact"):
        raise DerbyError(
            f"Only the built-in model's weights are published codes, which {spec.precision} is: "
            f"choose int{bits} for {spec.name!r}."
        )
    return rounded(model, bits)


def exact(model: "ov.Model", tensors: Mapping[str, Packed], bits: int) -> "ov.Model":
    """The codes of `tensors` in place of the matrices of their names, in `bits` (4 or 8) where they
    fit. Float32 arithmetic on them gives float32's texts. Consumes `model`.
    """
    for constant in matrices_of(model):
        names = [name.removeprefix(PREFIX) for name in constant.get_friendly_name().split()]
        _replace(constant, [tensors[name] for name in names], bits)
    model.validate_nodes_and_infer_types()
    return model


def _replace(constant: "ov.op.Constant", parts: list[Packed], bits: int) -> None:
    """Have every reader of `constant` read the decompressed codes of its parts instead.

    The CPU plugin recognises this chain, (code - zero) * scale, and multiplies from the codes.
    """
    import openvino as ov
    from openvino import opset13 as ops

    shape = list(constant.output(0).get_shape())
    codes = np.concatenate([part.codes for part in parts])
    scale = np.concatenate([part.scale for part in parts])
    scale[scale == 0] = 1
    if parts[0].kind == "Q4_1":
        zero = np.concatenate([-part.minimum for part in parts]) / scale
    else:
        codes, zero, bits = codes.astype(np.uint8) ^ 128, np.full((1, 1), 128, np.float32), 8
    kind, packed = ov.Type.u8, codes.reshape(-1)
    if bits == 4:
        kind, packed = ov.Type.u4, packed[0::2] | packed[1::2] << 4
    groups = [shape[0], -1, 1] if len(zero) > 1 else [1, 1, 1]
    tensor = ov.Tensor(kind, ov.Shape([shape[0], shape[1] // 32, 32]))
    tensor.data.reshape(-1)[:] = packed
    real = ops.convert(ov.op.Constant(tensor), "f32")
    centred = ops.subtract(real, ops.constant(zero.reshape(groups)))
    scaled = ops.multiply(centred, ops.constant(scale.reshape(shape[0], -1, 1)))
    weight = ops.reshape(scaled, ops.constant(shape), special_zero=False)
    for reader in constant.output(0).get_target_inputs():
        reader.replace_source_output(weight.output(0))


def matrices_of(model: "ov.Model") -> list["ov.op.Constant"]:
    """Those of all products with weights, each once."""
    matrices = filter(None, map(matrix_of, model.get_ops()))
    return list({matrix.get_friendly_name(): matrix for matrix in matrices}.values())


def rounded(model: "ov.Model", bits: int) -> "ov.Model":
    """8 bits a weight, one scale and zero point a row; or 4 in groups of 128 or the largest smaller
    power of two that fits a matrix, and 8 for the output projection, and where not even
    SMALLEST_GROUP fits. Consumes `model`.
    """
    # Its statistics and bars would go to standard output, where a result may be piped from.
    with redirect_stdout(sys.stderr):
        import nncf

        # Its own set_log_level() would silence handlers that others share.
        logging.getLogger("nncf").setLevel(logging.ERROR)
        if bits == 8:
            return nncf.compress_weights(model, mode=nncf.CompressWeightsMode.INT8_ASYM)
        return nncf.compress_weights(
            model,
            mode=nncf.CompressWeightsMode.INT4_SYM,
            group_size=128,
            ratio=1.0,
            advanced_parameters=nncf.AdvancedCompressionParameters(
                group_size_fallback_mode=nncf.GroupSizeFallbackMode.ADJUST,
                min_adjusted_group_size=SMALLEST_GROUP,
            ),
        )
