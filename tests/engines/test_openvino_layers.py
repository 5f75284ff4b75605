"""What a graph's layers leave to those behind them, found by the names that tracing gives."""

from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from backend.engines.openvino.layers import output_of, show_layers


def graph(*, scaled: bool = False, layer: str = "layers") -> ov.Model:
    """Two layers: each adds 1 and then doubles what it has by adding. `scaled`: and triples it."""
    x = given = ops.parameter([1, 2], np.float32, "x")
    for number in range(2):
        own = f"__module.model.{layer}.{number}"
        for place, part in enumerate((ops.constant(np.float32(1)), None)):
            inner = ops.relu(x if part is None else part)
            inner.set_friendly_name(f"{own}.mlp/aten::relu/Relu_{place}")
            x = ops.add(x, inner)
            x.set_friendly_name(f"{own}/aten::add/Add" + "_1" * place)
        if scaled:
            x = ops.multiply(x, ops.constant(np.float32(3)))
            x.set_friendly_name(f"{own}/aten::mul/Multiply")
    build: Any = ov.Model  # its stubs reject every call
    return build([ops.result(x)], [given])


def test_the_states_in_front_of_each_layer_are_outputs() -> None:
    model = graph()
    show_layers(model, (0, 1))
    request = ov.Core().compile_model(model, "CPU").create_infer_request()
    request.infer({0: np.array([[1, 5]], np.float32)})
    found = [request.get_tensor(output_of(layer)).data.tolist() for layer in (0, 1)]
    assert found == [[[1, 5]], [[4, 12]]]
    assert request.get_output_tensor(0).data.tolist() == [[10, 26]]


@pytest.mark.parametrize(
    ("model", "layer", "said"),
    [
        (graph(scaled=True), 1, "does more in __module.model.layers.0 than to add"),
        (graph(layer="parts"), 0, "does not name its layer 0"),
        (graph(), 2, "does not name its layer 2"),
    ],
)
def test_a_graph_without_them_is_refused(model: ov.Model, layer: int, said: str) -> None:
    """Gemma 4 scales what a layer leaves: the sum before it is not what the next one reads."""
    with pytest.raises(ValueError, match=said):
        show_layers(model, (layer,))
