"""Merged products: the same bits out of fewer products, and only siblings are merged."""

from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from backend.engines.openvino.export import openvino_ir
from backend.engines.openvino.weights import merge_products
from backend.models.files import IR
from backend.types import ModelSpec

ROWS = np.random.default_rng(0).normal(size=(1, 3, 32)).astype(np.float32)


def graph(products: list[tuple[str, int, str]]):
    """A model of products by name, outputs and what they read: "x", or "y", which is not x."""
    import openvino as ov
    from openvino import opset13 as ops

    noise = np.random.default_rng(1)
    x = ops.parameter([1, -1, 32], ov.Type.f32, "x")
    sources = {"x": x, "y": ops.relu(x)}
    results = []
    for name, outputs, source in products:
        weight = ops.constant(noise.normal(size=(outputs, 32)).astype(np.float32))
        product = ops.matmul(sources[source], weight, transpose_a=False, transpose_b=True)
        product.set_friendly_name(f"{name}/MatMul")
        results.append(ops.result(ops.tanh(product)))
    return ov.Model(results, [x])


def outputs_of(model) -> list[NDArray[np.float32]]:
    import openvino as ov

    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return [value.copy() for value in compiled(ROWS).values()]


def products_in(model) -> int:
    return Counter(node.get_type_name() for node in model.get_ops())["MatMul"]


@pytest.mark.parametrize(
    ("products", "left"),
    [
        (
            [("layers.0.attn.q", 8, "x"), ("layers.0.attn.k", 4, "x"), ("layers.0.attn.v", 4, "x")],
            1,
        ),
        ([("layers.0.mlp.gate", 8, "x"), ("layers.0.attn.q", 8, "x")], 2),
        ([("layers.0.mlp.gate", 8, "x"), ("layers.0.mlp.up", 8, "y")], 2),
        ([("layers.0.mlp.gate", 8, "x"), ("layers.1.mlp.gate", 8, "x")], 2),
    ],
    ids=["siblings", "other modules", "other rows", "other layers"],
)
def test_siblings_become_one_product_of_the_same_values(
    products: list[tuple[str, int, str]], left: int
) -> None:
    before = outputs_of(graph(products))
    merged = merge_products(graph(products))
    assert products_in(merged) == left
    for ours, theirs in zip(outputs_of(merged), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.model
@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_a_layer_of_the_built_in_model_has_four_products(precision: str) -> None:
    """Query, key and value; attention's output; gate and up; down."""
    import openvino as ov

    model = ov.Core().read_model(openvino_ir(ModelSpec(precision=precision), print) / IR[0])
    weighted = [
        node
        for node in model.get_ops()
        if node.get_type_name() == "MatMul" and "layers." in node.get_friendly_name()
    ]
    assert len(weighted) == 30 * 4
