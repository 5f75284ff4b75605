"""The hidden states in front of a graph's layers, as outputs: for drafts that read them."""

import re
from typing import TYPE_CHECKING

from backend.types import Layers

if TYPE_CHECKING:
    import openvino as ov

#: What a layer itself adds, by the names that torch's tracing gives: to the residual stream.
_ADDED = re.compile(r"__module\.[\w.]*\b(?:layers|h|blocks)\.(\d+)/aten::add_?/Add(?:_\d+)?$")


def output_of(layer: int) -> str:
    """What the output is called that has the hidden states in front of this layer."""
    return f"hidden.{layer}"


def show_layers(model: "ov.Model", layers: Layers) -> None:
    """Give the graph an output f32 [1, n, D] for each of these layers, `output_of` it, behind those
    it has. Changes the graph. Raises ValueError if it does not have them by names that we know.
    """
    sums: dict[int, list[ov.Node]] = {}
    for node in model.get_ordered_ops():
        if found := _ADDED.match(node.get_friendly_name()):
            sums.setdefault(int(found[1]), []).append(node)
    for layer in layers:
        if not sums or not 0 <= layer <= max(sums) or set(sums) != set(range(max(sums) + 1)):
            raise ValueError(f"its graph does not name its layer {layer}")
        port = _left_by(sums[layer - 1][-1]) if layer else _entering(sums[0][0])
        port.set_names({*port.get_names(), output_of(layer)})
        model.add_outputs(port)


def _left_by(last: "ov.Node") -> "ov.Output":
    """What a layer leaves: its last sum, behind which it computes nothing more."""
    own, port = _layer_of(last), last.output(0)
    if any(_layer_of(reader.get_node()) == own for reader in port.get_target_inputs()):
        raise ValueError(f"its graph does more in {own} than to add")
    return port


def _entering(first: "ov.Node") -> "ov.Output":
    """What goes into the first layer: the part of its first sum that it did not compute itself."""
    own, ports = _layer_of(first), [port.get_source_output() for port in first.inputs()]
    (outside,) = [port for port in ports if not _layer_of(port.get_node()).startswith(own)]
    return outside


def _layer_of(node: "ov.Node") -> str:
    """The module of the original that computes the node."""
    return node.get_friendly_name().partition("/")[0]
