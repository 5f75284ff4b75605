"""What is OpenVINO's own: siblings become one product of the same values, published codes give the
same products and the same logits, and rounding to fewer bits leaves standard output alone.
"""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from backend.engines.openvino.core import EXACT
from backend.engines.openvino.weights import compressed, exact, merge_products, rounded
from backend.errors import DerbyError
from backend.models.builtin import BLOCK, Packed
from backend.types import ModelSpec

RANDOM = np.random.default_rng(0)

Floats = NDArray[np.float32]


def products(weights: dict[str, Floats], sources: str = "") -> Any:
    """An OpenVINO model that multiplies its input x [1, 3, I], or y made of it, by each matrix, a
    constant of its name. `sources`: "x" or "y" for each.
    """
    import openvino as ov
    from openvino import opset13 as ops

    width = next(iter(weights.values())).shape[1] if weights else 1
    x = ops.parameter([1, 3, width], ov.Type.f32)
    inputs, results = {"x": x, "y": ops.relu(x)}, []
    for (name, weight), source in zip(weights.items(), sources or "x" * len(weights), strict=True):
        constant = ops.constant(weight)
        constant.set_friendly_name(name)
        product = ops.matmul(inputs[source], constant, transpose_a=False, transpose_b=True)
        product.set_friendly_name(f"{name}/MatMul")
        results.append(ops.result(ops.tanh(product)))
    build: Any = ov.Model
    return build(results, [x], "products")


def outputs_of(model: Any, x: Floats) -> list[Floats]:
    import openvino as ov

    compiled = ov.Core().compile_model(model, "CPU", EXACT)
    return [value.copy() for value in compiled(x).values()]


def types_in(model: Any) -> set[str]:
    return {node.get_element_type().get_type_name() for node in model.get_ops()}


def random(*shape: int) -> Floats:
    return RANDOM.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(
    ("sizes", "sources", "count"),
    [
        ({"layers.0.attn.q": 8, "layers.0.attn.k": 4, "layers.0.attn.v": 4}, "xxx", 1),
        ({"layers.0.mlp.gate": 8, "layers.0.attn.q": 8}, "xx", 2),
        ({"layers.0.mlp.gate": 8, "layers.0.mlp.up": 8}, "xy", 2),
        ({"layers.0.mlp.gate": 8, "layers.1.mlp.gate": 8}, "xx", 2),
    ],
    ids=["siblings", "other modules", "other rows", "other layers"],
)
def test_siblings_become_one_product_of_the_same_values(
    sizes: dict[str, int], sources: str, count: int
) -> None:
    weights, x = {name: random(size, 32) for name, size in sizes.items()}, random(1, 3, 32)
    before = outputs_of(products(weights, sources), x)
    merged = merge_products(products(weights, sources))
    assert Counter(node.get_type_name() for node in merged.get_ops())["MatMul"] == count
    for ours, theirs in zip(outputs_of(merged, x), before, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def published(kind: str, rows: int) -> Packed:
    """Weights [rows, 512] as a GGUF file stores them; the first group is constant."""
    values = random(rows, 512)
    values[0, :32] = 0.5
    blocks = quants.quantize(values, GGMLQuantizationType[kind])
    return Packed(kind, blocks.reshape(-1, BLOCK[kind][1]))


@pytest.mark.parametrize(("bits", "kinds"), [(4, {"u4", "u8"}), (8, {"u8"})])
def test_published_codes_give_the_same_products(bits: int, kinds: set[str]) -> None:
    """Also of matrices that were merged; finer grids keep eight bits beside those of four."""
    tensors = {"q": published("Q4_1", 64), "k": published("Q4_1", 32), "out": published("Q8_0", 64)}
    weights = {name: packed.weight().reshape(-1, 512) for name, packed in tensors.items()}
    merged = {
        "self.q self.k": np.concatenate([weights["q"], weights["k"]]),
        "self.out": weights["out"],
    }
    model, x = exact(products(merged), tensors, bits), 0.05 * random(1, 3, 512)
    assert types_in(model) & {"u4", "u8"} == kinds
    for output, weight in zip(outputs_of(model, x), merged.values(), strict=True):
        np.testing.assert_allclose(output, np.tanh(x.astype(np.float64) @ weight.T), atol=1e-5)


@pytest.mark.parametrize(("bits", "kind"), [(8, "u8"), (4, "i4")])
def test_rounding_writes_nothing_to_standard_output(
    bits: int, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A table of NNCF's preceded the figures of `bench --json` when a copy was made on the way.
    Matrices of 96 take smaller groups than others.
    """
    model = rounded(products({"a": random(64, 96), "b": random(64, 96)}), bits)
    assert kind in types_in(model)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("bits", ["4", "8"])
def test_what_was_never_in_codes_is_refused_with_the_remedy(bits: str) -> None:
    spec = ModelSpec("owner/model", precision=f"int{bits}-exact")
    with pytest.raises(DerbyError, match=f"choose int{bits} for"):
        compressed(products({}), spec, print)
