"""From a Hugging Face folder to an OpenVINO IR that takes any attention mask, prepared once.

The IR is stateful (it holds the KV cache) and its interface is, for n new tokens after P cached
ones, batch 1:

    input_ids       i64 [1, n]
    position_ids    i64 [1, n]
    beam_idx        i32 [1]             always 0
    attention_bias  f32 [1, 1, n, P+n]  added to the scores: 0 visible, the f32 minimum hidden
    sliding_bias    f32 [1, 1, n, P+n]  the same for the layers that slide, if only some do
    rows            i64 [r]             which of the n new tokens get logits; may be empty
    logits          f32 [1, r, V]       the first output
    features        f32 [1, n, D]       the second: what the output projection reads, of all rows
"""

import math
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from backend.engines.openvino.compress import COMPRESSORS
from backend.engines.openvino.conversion import (
    RefusedError,
    architecture,
    converted,
    unsupported,
)
from backend.engines.openvino.core import BYTES
from backend.engines.openvino.merge import merge_products
from backend.errors import unknown
from backend.models.checkpoint import quantised_as, read_object
from backend.models.files import BUILT_IN, ModelFiles, Say, model_files
from backend.models.prepared import is_prepared, prepared, versions
from backend.types import ModelSpec

if TYPE_CHECKING:
    import openvino as ov

IR = "openvino_model.xml"

#: Raise it whenever the code below writes something else.
RECIPE = "openvino v3"

#: What makes an IR: with another version of one of them it is made anew.
CONVERTERS = ("optimum-intel", "optimum", "transformers", "torch", "openvino", "nncf")

EXPORTED = ("input_ids", "attention_mask", "position_ids", "beam_idx")

#: Types of stored weights, by the precision that an engine is asked for; others are computed in
#: fp32, whatever they are stored in.
STORED = {"int4": ("u4", "i4", "nf4"), "int8": ("u8", "i8")}

#: Operations between the output projection and the logits that change no logit's place.
EACH_LOGIT_ALONE = {"Result", "Convert", "Multiply", "Divide", "Tanh", "Add"}

#: Bytes of memory that making an IR takes for each weight, at its peak.
PEAK = 8.0


def openvino_ir(spec: ModelSpec, say: Say) -> Path:
    """The folder with the IR of `spec` (openvino_model.xml and .bin), made if need be.

    fp32 is the reference; the others are its weights compressed. Of weights that were published in
    four bits, int4 is int4-exact, run with other arithmetic. Raises DerbyError for an unknown
    precision, for weights that were not published in the codes asked for, for an architecture
    without the expected attention or output pattern, and for a graph that computes something else
    than torch does.
    """
    if spec.precision not in BYTES:
        raise unknown("precision", spec.precision, BYTES)
    files = model_files(spec.name, say)
    if spec.name == BUILT_IN and spec.precision == "fp32":
        return files.folder
    name, key = _place(spec.precision, files)
    if spec.precision == "int4" and not is_prepared(name, key):
        with suppress(RefusedError):
            return openvino_ir(replace(spec, precision="int4-exact"), say)
    return prepared(name, key, lambda folder: _make(folder / IR, spec, files, say), say)


def conversion_bytes(spec: ModelSpec, say: Say) -> int:
    """Memory that making the IR of `spec` takes at its peak; 0: it is there, or was made by others.
    Raises DerbyError for an unknown model.
    """
    files = model_files(spec.name, say)
    # For int4 the exact codes will do.
    made = {spec.precision, "int4-exact" if spec.precision == "int4" else spec.precision}
    if files.ready_made or any(is_prepared(*_place(each, files)) for each in made):
        return 0
    return round(PEAK * files.weights)


def _make(path: Path, spec: ModelSpec, files: ModelFiles, say: Say) -> None:
    """Write the IR of a model. Raises DerbyError."""
    if spec.precision != "fp32":
        original = openvino_ir(replace(spec, precision="fp32"), say)
        say(f"Compressing {spec.name} to {spec.precision}...")
        _save(COMPRESSORS[spec.precision](_read(original / IR)), path)
        return
    say(f"Converting {spec.name} to OpenVINO...")
    if method := quantised_as(read_object(files.folder / "config.json", spec.name)):
        raise unsupported(files, f"weights in {method:.40}")
    exported, probe = converted(files, spec.name, path.parent)
    _save(_with_interface(merge_products(exported), files, probe.cap), path)
    del exported
    probe.require_equal(path, files)


def _place(precision: str, files: ModelFiles) -> tuple[str, str]:
    """The name of the prepared folder, and how its content is made."""
    key = f"{RECIPE} {precision} of {files.fingerprint} by {versions(*CONVERTERS)}"
    return f"openvino-{precision}-{files.fingerprint[:16]}", key


def ready_made(path: Path, spec: ModelSpec, files: ModelFiles) -> "ov.Model":
    """The IR at `path`, which somebody else made, behind our interface; its weights stay as stored.

    "int4-exact" and "int8-exact" are those codes as well, run with exact arithmetic. Raises
    DerbyError for a precision other than the stored one, and where the graph lacks a node.
    """
    model = _read(path)
    stored = _stored_precision(model)
    if spec.precision.removesuffix("-exact") != stored:
        raise unknown("precision", spec.precision, (stored,))
    return _with_interface(model, files)


def _stored_precision(model: "ov.Model") -> str:
    """How most weights are stored: int4 or int8, or fp32 for any kind of floating point."""
    types: Counter[str] = Counter()
    for node in model.get_ops():
        if node.get_type_name() == "Constant" and len(shape := node.get_output_shape(0)) > 1:
            types[node.get_output_element_type(0).get_type_name()] += math.prod(shape)
    for precision, names in STORED.items():
        # int4 models keep their embeddings and their output projection in int8.
        if any(types[name] for name in names):
            return precision
    return "fp32"


def _read(path: Path) -> "ov.Model":
    import openvino as ov

    return ov.Core().read_model(path)


def _save(model: "ov.Model", path: Path) -> None:
    import openvino as ov

    ov.save_model(model, path, compress_to_fp16=False)


def _with_interface(model: "ov.Model", files: ModelFiles, cap: float = 0) -> "ov.Model":
    """The same weights behind the interface that the head of this file describes; `cap`: see
    `_cap_scores`, 0: there is none.
    """
    import openvino as ov
    from openvino import opset13 as ops

    sliding = files.sliding
    inputs = {parameter.get_friendly_name(): parameter for parameter in model.get_parameters()}
    for name in EXPORTED:
        if name not in inputs:
            raise unsupported(files, f"no input {name!r}")
    if strange := sorted(set(inputs) - set(EXPORTED)):
        raise unsupported(files, f"input {strange[0]!r}")
    bias = _parameter([-1, 1, -1, -1], ov.Type.f32, "attention_bias")
    rows = _parameter([-1], ov.Type.i64, "rows")
    biases = [bias]
    if 0 < sum(sliding) < len(sliding):
        biases.append(_parameter([-1, 1, -1, -1], ov.Type.f32, "sliding_bias"))

    attention = _attention(model, files)
    if len(biases) > 1 and len(attention) != len(sliding):
        raise unsupported(files, f"{len(attention)} attentions, {len(sliding)} layers")
    for index, node in enumerate(attention):
        own = biases[-1] if sliding and sliding[index] else bias
        node.input(3).replace_source_output(own.output(0))
        if cap:
            _cap_scores(node, cap)

    # Whatever else reads the padding mask learns that all P+n tokens are real.
    lengths = ops.gather(ops.shape_of(bias), ops.constant([0, 3]), ops.constant(0))
    ones = ops.broadcast(ops.constant(1, ov.Type.i64), lengths)
    for reader in inputs.pop("attention_mask").output(0).get_target_inputs():
        reader.replace_source_output(ones.output(0))

    head = _output_projection(model, files).input(0)
    features = head.get_source_output()
    chosen = ops.gather(features, rows, ops.constant(1))
    head.replace_source_output(chosen.output(0))
    hidden = ops.result(features, name="features")

    order = [inputs[name] for name in ("input_ids", "position_ids", "beam_idx")]
    build: Any = ov.Model  # its stubs reject every call
    return build(
        [*model.get_results(), hidden],
        model.get_sinks(),
        [*order, *biases, rows],
        architecture(files),
    )


def _cap_scores(node: "ov.Node", cap: float) -> None:
    """Have an attention node's scores run into `cap`, before its mask is added: Gemma 2's do, by
    cap * tanh(scores / cap), and the node cannot (arXiv 2408.00118, section 2).
    """
    from openvino import opset13 as ops

    query, key, value, mask, scale = (port.get_source_output() for port in node.inputs())
    scores = ops.matmul(ops.multiply(query, scale), key, False, True)  # noqa: FBT003
    limit = ops.constant(np.float32(cap))
    capped = ops.multiply(ops.tanh(ops.divide(scores, limit)), limit)
    seen = ops.matmul(ops.softmax(ops.add(capped, mask), -1), value, False, False)  # noqa: FBT003
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(seen.output(0))


def _attention(model: "ov.Model", files: ModelFiles) -> list["ov.Node"]:
    """The attention of each layer, in order; the fourth input of each is the mask."""
    kind = "ScaledDotProductAttention"
    found = [node for node in model.get_ordered_ops() if node.get_type_name() == kind]
    if not found:
        raise unsupported(files, f"no {kind}")
    for node in found:
        if len(node.inputs()) < 4:
            raise unsupported(files, f"no mask in {node.get_friendly_name()}")
        heads = node.input(3).get_partial_shape()[1]
        if heads.is_static and heads.get_length() != 1:
            # ALiBi, say: what it adds would go with the mask.
            raise unsupported(files, f"heads' masks in {node.get_friendly_name()}")
    return found


def _parameter(shape: list[int], kind: "ov.Type", name: str) -> "ov.Node":
    import openvino as ov
    from openvino import opset13 as ops

    parameter = ops.parameter(ov.PartialShape(shape), kind, name)
    parameter.output(0).set_names({name})
    return parameter


def _output_projection(model: "ov.Model", files: ModelFiles) -> "ov.Node":
    """The matmul nearest to the logits, through scales and caps that act on each logit alone."""
    outputs = {name: port for port in model.outputs for name in port.get_names()}
    if "logits" not in outputs:
        raise unsupported(files, "no output 'logits'")
    node = outputs["logits"].get_node()
    while node.get_type_name() in EACH_LOGIT_ALONE:
        node = node.input(0).get_source_output().get_node()
    if node.get_type_name() != "MatMul" or node.input(0).get_partial_shape().rank.get_length() != 3:
        raise unsupported(files, f"'logits' from {node!s:.80}")
    return node
