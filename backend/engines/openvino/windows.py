"""Convolutions over a text's last rows, in a graph: states that can be taken up behind any row of
the last pass.

An exporter's graph keeps, of each such layer, the columns that the next row's convolution reads:
[b, D, L] behind its last row, so that a rejected row cannot be taken back. Here it keeps what it
read itself, [b, D, L + n] after a pass over n rows, and the next pass begins at column `kept`: the
number of those rows that belong to the text. So a rejected draft costs nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import openvino as ov

#: How the names of these states begin; the others are those of attention.
WINDOW = "window."

#: What lies between the angles of rotary positions and the product that makes them.
_BESIDE_ANGLES = {"Concat", "Transpose"}


def windows_in(model: "ov.Model") -> "list[tuple[ov.Node, ov.Node]]":
    """The nodes that read and write each convolution's state: of attention, states have an axis
    more.
    """
    reads = {_variable(node): node for node in model.get_ops() if _kind(node) == "ReadValue"}
    pairs = [(reads[_variable(sink)], sink) for sink in model.get_sinks()]
    return [pair for pair in pairs if len(pair[0].get_output_partial_shape(0)) == 3]


def keep_windows(model: "ov.Model", kept: "ov.Node") -> "list[ov.Node]":
    """Have the graph keep whole windows, and begin at column `kept`, i64 [1]: all of its sinks.

    Raises ValueError where its convolutions are computed in another way.
    """
    import openvino as ov
    from openvino import opset13 as ops

    found = windows_in(model)
    replaced = {_variable(sink) for _, sink in found}
    sinks: list[Any] = [sink for sink in model.get_sinks() if _variable(sink) not in replaced]
    for number, (read, _) in enumerate(found):
        (taken,) = _readers(read)
        (joined,) = (node for node in _readers(taken) if _kind(node) == "Concat")
        _, channels, width = read.get_output_partial_shape(0)
        shape = ov.PartialShape([-1, channels.get_length(), -1])
        name = f"{WINDOW}{number}"
        held = ops.read_value(read.input_value(0), name, ov.Type.f32, shape)
        taken.input(0).replace_source_output(held.output(0))
        end = ops.add(kept, ops.constant([width.get_length()], ov.Type.i64))
        one, axis = (ops.constant([value], ov.Type.i64) for value in (1, 2))
        begin = ops.slice(taken.output(0), kept, end, one, axis)
        joined.input(0).replace_source_output(begin.output(0))
        sinks.append(ops.assign(joined, name))
    return sinks


def take_positions(model: "ov.Model", positions: "ov.Node") -> None:
    """Have rotary positions be those of the input, i64 [b, n], instead of the cache's length.

    Raises ValueError where they are computed in another way.
    """
    import openvino as ov
    from openvino import opset13 as ops

    (node, *_) = (node for node in model.get_ordered_ops() if _kind(node) == "Cos")
    while _kind(node := node.input_value(0).get_node()) in _BESIDE_ANGLES:
        pass
    if _kind(node) != "MatMul":
        raise ValueError(f"the angles of its positions come from {node!s:.80}")
    row = ops.unsqueeze(positions, ops.constant(1))
    node.input(1).replace_source_output(ops.convert(row, ov.Type.f32).output(0))


def _kind(node: "ov.Node") -> str:
    return node.get_type_name()


def _variable(node: "ov.Node") -> str:
    return node.get_attributes()["variable_id"]


def _readers(node: "ov.Node") -> "list[ov.Node]":
    return [port.get_node() for port in node.output(0).get_target_inputs()]
