"""Codes read off the grids that weights were published on, and what lies on none."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants
from numpy.typing import NDArray

from backend.engines.openvino.compress import (
    LAST_PLACE,
    RefusedError,
    codes_on_grid,
    exact,
    int4,
    int8,
)

RANDOM = np.random.default_rng(0)


def published(kind: str, rows: int = 64, width: int = 512) -> NDArray[np.float32]:
    """Weights [rows, width] as a GGUF file in this format gives them back."""
    format_ = GGMLQuantizationType[kind]
    values = RANDOM.normal(size=(rows, width)).astype(np.float32)
    return quants.dequantize(quants.quantize(values, format_), format_)


def test_codes_around_zero_give_the_weights_back_bit_for_bit() -> None:
    weight = published("Q8_0")
    found = codes_on_grid(weight)
    assert found
    assert found.bits == 8
    np.testing.assert_array_equal(found.weight(), weight)


def test_codes_with_an_offset_give_the_weights_back_to_the_last_place() -> None:
    """An offset is no multiple of its scale: float32 rounds where it is taken off."""
    weight = published("Q4_1")
    found = codes_on_grid(weight)
    assert found
    assert found.bits == 4
    assert found.values.max() < 16
    groups = weight.reshape(found.values.shape)
    apart = np.abs(found.weight().reshape(groups.shape) - groups).max(-1)
    assert np.all(apart <= LAST_PLACE * np.abs(groups).max(-1))


def test_a_constant_group_needs_no_scale() -> None:
    for value in (0.3, 0.0, -7.0):
        found = codes_on_grid(np.full((2, 64), value, dtype=np.float32))
        assert found
        np.testing.assert_array_equal(found.weight(), np.float32(value))


def test_any_other_weights_have_no_codes() -> None:
    weight = RANDOM.normal(size=(4, 96)).astype(np.float32)
    assert codes_on_grid(weight) is None
    assert codes_on_grid(weight.astype(np.float16).astype(np.float32)) is None
    assert codes_on_grid(published("Q4_1")[:, :511]) is None


def test_one_weight_off_the_grid_is_found() -> None:
    """A row is tried first; the others count as well."""
    weight = published("Q4_1", rows=256, width=4096)
    weight[100, 77] *= 1.01
    assert codes_on_grid(weight) is None


def products(*weights: NDArray[np.float32]) -> Any:
    """An OpenVINO model that multiplies one input [1, I] by each matrix."""
    import openvino as ov
    from openvino import opset13 as ops

    given = ops.parameter([1, weights[0].shape[1]], ov.Type.f32)
    made = [ops.matmul(given, ops.constant(weight), False, True) for weight in weights]
    build: Any = ov.Model
    return build([ops.result(node) for node in made], [given], "products")


def test_matrices_on_finer_grids_keep_eight_bits_beside_those_of_four() -> None:
    """The built-in model's output projection is in Q8_0."""
    import openvino as ov

    four, eight = published("Q4_1"), published("Q8_0")
    model = exact(products(four, eight), bits=4)
    kinds = {node.get_element_type().get_type_name() for node in model.get_ops()}
    assert {"u4", "u8"} <= kinds
    exactly = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    compiled = ov.Core().compile_model(model, "CPU", exactly)
    one = RANDOM.normal(size=(1, 512)).astype(np.float32)
    for found, weight in zip(compiled(one).values(), (four, eight), strict=True):
        expected = one.astype(np.float64) @ weight.T
        np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max(), rtol=0)


@pytest.mark.parametrize("rounded", [int8, int4])
def test_rounding_writes_nothing_to_standard_output(
    rounded: Callable[[Any], Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """A table of NNCF's preceded the figures of `bench --json` when a copy was made on the way."""
    rounded(products(RANDOM.normal(size=(64, 256)).astype(np.float32)))
    assert capfd.readouterr().out == ""


def test_what_was_never_in_codes_is_refused_with_the_remedy() -> None:
    free = RANDOM.normal(size=(64, 512)).astype(np.float32)
    with pytest.raises(RefusedError, match="int4-exact"):
        exact(products(published("Q4_1"), free), bits=4)
    with pytest.raises(RefusedError, match="int4-exact"):
        exact(products(published("Q8_0")), bits=4)
    exact(products(published("Q8_0")), bits=8)
