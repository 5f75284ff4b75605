"""Codes as they were published, and weights rounded to fewer bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from backend.engines.openvino.core import EXACT
from backend.engines.openvino.weights import compressed, exact, int4, int8
from backend.errors import DerbyError
from backend.models.builtin import BLOCK, Packed
from backend.types import ModelSpec

RANDOM = np.random.default_rng(0)


def published(kind: str, rows: int = 64) -> Packed:
    """Weights [rows, 512] as a GGUF file stores them; the first group is constant."""
    values = RANDOM.normal(size=(rows, 512)).astype(np.float32)
    values[0, :32] = 0.5
    blocks = quants.quantize(values, GGMLQuantizationType[kind])
    return Packed(kind, blocks.reshape(-1, BLOCK[kind][1]))


def products(weights: dict[str, NDArray[np.float32]]) -> Any:
    """An OpenVINO model that multiplies one input [1, I] by each matrix, a constant of its name."""
    import openvino as ov
    from openvino import opset13 as ops

    x = ops.parameter([1, 512], ov.Type.f32)
    constants = [ops.constant(weight) for weight in weights.values()]
    for constant, name in zip(constants, weights, strict=True):
        constant.set_friendly_name(name)
    results = [ops.result(ops.matmul(x, each, False, True)) for each in constants]
    build: Any = ov.Model
    return build(results, [x], "products")


@pytest.mark.parametrize(("bits", "kinds"), [(4, {"u4", "u8"}), (8, {"u8"})])
def test_published_codes_give_the_same_products(bits: int, kinds: set[str]) -> None:
    """Also of matrices that were merged; finer grids keep eight bits beside those of four."""
    import openvino as ov

    tensors = {"q": published("Q4_1"), "k": published("Q4_1", 32), "out": published("Q8_0")}
    whole = {name: packed.weight().reshape(-1, 512) for name, packed in tensors.items()}
    merged = {"self.q self.k": np.concatenate([whole["q"], whole["k"]]), "self.out": whole["out"]}
    model = exact(products(merged), tensors, bits)
    types = {node.get_element_type().get_type_name() for node in model.get_ops()}
    assert types & {"u4", "u8"} == kinds
    x = RANDOM.normal(size=(1, 512)).astype(np.float32)
    outputs = ov.Core().compile_model(model, "CPU", EXACT)(x).values()
    for output, weight in zip(outputs, merged.values(), strict=True):
        expected = x.astype(np.float64) @ weight.T
        np.testing.assert_allclose(output, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("rounded", [int8, int4])
def test_rounding_writes_nothing_to_standard_output(
    rounded: Callable[[Any], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """A table of NNCF's preceded the figures of `bench --json` when a copy was made on the way."""
    rounded(products({"a": RANDOM.normal(size=(64, 512)).astype(np.float32)}))
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("bits", ["4", "8"])
def test_what_was_never_in_codes_is_refused_with_the_remedy(bits: str) -> None:
    spec = ModelSpec("owner/model", precision=f"int{bits}-exact")
    with pytest.raises(DerbyError, match=f"choose int{bits} for"):
        compressed(products({}), spec, print)
