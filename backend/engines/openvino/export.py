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
"""

import gc
import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from backend.engines.openvino.core import BYTES, EXACT, core
from backend.engines.openvino.session import OpenVINOSession, states_of
from backend.engines.openvino.weights import compressed, merge_products
from backend.engines.self_test import TOKENS, in_passes, sample
from backend.errors import DerbyError, unknown
from backend.models.files import (
    BUILT_IN,
    IR,
    ModelFiles,
    Say,
    loading,
    model_files,
    read_object,
    stored_precision,
    weights_in,
)
from backend.models.prepared import is_prepared, prepared, versions
from backend.types import Logits, ModelSpec

if TYPE_CHECKING:
    import openvino as ov


#: Raise it whenever the code below writes something else, and have `python -m experiments built_in`
#: write the built-in model's graph anew.
RECIPE = "openvino v3"

#: What makes an IR: with another version of one of them it is made anew.
CONVERTERS = ("optimum-intel", "optimum", "transformers", "torch", "openvino", "nncf")

#: Logits may differ from torch's by this share of the largest: float32 rounds by some 1e-6 in tiny
#: models and 1e-5 in deep ones; a wrong mask or position changes them by 1e-2.
ROUNDING = 3e-4

EXPORTED = {"input_ids", "attention_mask", "position_ids", "beam_idx"}

#: Operations between the output projection and the logits that change no logit's place.
EACH_LOGIT_ALONE = {"Result", "Convert", "Multiply", "Divide", "Tanh", "Add"}

#: Bytes of memory that making an IR takes for each weight, at its peak.
PEAK = 8.0


def openvino_ir(spec: ModelSpec, say: Say) -> Path:
    """The folder with the IR of `spec`, made if need be: fp32, or its weights compressed. The
    built-in model's int4 is its int4-exact, run with other arithmetic. Raises DerbyError for what
    cannot be converted, or computes something else than torch does.
    """
    if spec.precision not in BYTES:
        raise unknown("precision", spec.precision, BYTES)
    files = model_files(spec.name, say)
    if spec.name == BUILT_IN and spec.precision == "fp32":
        return files.folder
    if spec.name == BUILT_IN and spec.precision == "int4":
        spec = replace(spec, precision="int4-exact")

    def build(folder: Path) -> None:
        if spec.precision == "fp32":
            say(f"Converting {spec.name} to OpenVINO...")
            graph, logits = converted(files, spec.name, folder)
            _save(_with_interface(merge_products(graph), files), folder)
            require_equal(folder, logits, files)
        else:
            original = openvino_ir(replace(spec, precision="fp32"), say)
            say(f"Compressing {spec.name} to {spec.precision}...")
            _save(compressed(core().read_model(original / IR[0]), spec, say), folder)

    return prepared(*_place(spec.precision, files), build, say)


def conversion_bytes(spec: ModelSpec, say: Say) -> int:
    """Memory that making the IR of `spec` takes at its peak; 0: it is there, or was made by others.
    Raises DerbyError for an unknown model.
    """
    files = model_files(spec.name, say)
    if spec.name == BUILT_IN or files.ready_made or is_prepared(*_place(spec.precision, files)):
        return 0
    return round(PEAK * weights_in(files.folder))


def _place(precision: str, files: ModelFiles) -> tuple[str, str]:
    """The name of the prepared folder, and how its content is made."""
    key = f"{RECIPE} {precision} of {files.fingerprint} by {versions(*CONVERTERS)}"
    return f"openvino-{precision}-{files.fingerprint[:16]}", key


def architecture(files: ModelFiles) -> str:
    config = read_object(files.folder / "config.json", files.folder.name)
    return str(config.get("model_type", "unknown"))


def unsupported(files: ModelFiles, lacking: str) -> DerbyError:
    """Why the model cannot run."""
    kind = architecture(files)
    return DerbyError(
        f"OpenVINO cannot run this {kind} model ({lacking}): choose another engine or model."
    )


def converted(files: ModelFiles, name: str, folder: Path) -> tuple["ov.Model", Logits]:
    """A stateful fp32 graph as optimum-intel makes it, and torch's logits [n, V] of the self-test's
    text; `folder` takes what is written on the way. Raises DerbyError.
    """
    import openvino as ov
    import torch
    from transformers import AutoConfig

    from backend.engines.torch.engine import fix_positions, load_model, text_config

    if quantised := read_object(files.folder / "config.json", name).get("quantization_config"):
        method = str(quantised.get("quant_method", "unknown"))
        raise unsupported(files, f"weights in {method:.40}")
    with loading(name, f"The model {name!r} cannot be loaded"):
        config = AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
    text = text_config(config)
    if getattr(text, "attn_logit_softcapping", None):
        raise unsupported(files, "capped attention scores")
    exporter = _exporter(text.model_type)
    if exporter is None:
        raise unsupported(files, "no exporter")
    model = load_model(ModelSpec(name, "torch", "fp32"), files, {})
    # This pass would otherwise have longrope share a tensor, which no trace takes.
    fix_positions(model)
    with torch.inference_mode():
        tokens = torch.tensor([sample(files.vocab_size)])
        logits = model(tokens, use_cache=False).logits[0].float().numpy()
    with TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / "exported.xml"
        _export(model, exporter, path, files)
        del model
        gc.collect()
        # Read without mapping: the scratch folder is about to go.
        graph = ov.Core().read_model(path, config={"ENABLE_MMAP": False})
    return graph, logits


def _exporter(architecture: str) -> Callable[..., Any] | None:
    """Makes optimum-intel's description of how a model of this type is exported, from the model's
    configuration; None: there is none. Its ranges of transformers' versions are left out: they say
    what was tried, and `require_equal` says what works.
    """
    from optimum.exporters.openvino.model_configs import TasksManager  # registers them

    try:
        tasks = TasksManager.get_supported_tasks_for_model_type(
            architecture, "openvino", library_name="transformers"
        )
        described: Any = tasks["text-generation-with-past"]
    except KeyError:
        return None
    unlimited = {"MIN_TRANSFORMERS_VERSION": None, "MAX_TRANSFORMERS_VERSION": None}
    kind = type(described.func.__name__, (described.func,), unlimited)
    return partial(kind, **described.keywords, use_past_in_inputs=True)


def _export(model: Any, exporter: Callable[..., Any], path: Path, files: ModelFiles) -> None:
    """Write the graph of a torch model. Raises DerbyError."""
    from optimum.exporters.openvino import convert
    from optimum.intel import OVConfig

    # Else torch traces the module twice more, 7 s for the built-in model, to say in a warning
    # whether the values come out the same, which `require_equal` sees to.
    convert.allow_skip_tracing_check = lambda *_: True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about code that is not ours
        try:
            convert.export(
                model,
                exporter(model.config),
                path,
                ov_config=OVConfig(dtype="fp32"),
                library_name="transformers",
            )
        except (OSError, MemoryError):
            raise
        except Exception as error:
            # Whatever the tracer stumbles on: TypeError, RuntimeError, KeyError and others.
            first: BaseException = error
            while before := first.__cause__ or first.__context__:
                first = before
            words = (str(first).strip() or type(first).__name__).partition("\n")[0]
            words = words.partition(" (/")[0]  # without the place of a package
            raise unsupported(files, f"{words:.200}") from error


def require_equal(folder: Path, logits: Logits, files: ModelFiles) -> None:
    """Raise DerbyError unless the IR gives torch's `logits` of the self-test's text, but for
    float32's rounding.
    """
    request = core().compile_model(folder / IR[0], "CPU", EXACT).create_infer_request()
    session = OpenVINOSession(request, files.max_context, files.window)
    own = in_passes(session, sample(files.vocab_size), (1, TOKENS - 1))
    # Those that are no numbers come of damaged weights, which whoever runs them says.
    if np.abs(own - logits).max() > ROUNDING * np.abs(logits).max():
        raise unsupported(files, "logits off from those of torch")


def ready_made(path: Path, spec: ModelSpec, files: ModelFiles) -> "ov.Model":
    """The IR at `path`, which somebody else made, behind our interface; its weights stay as stored.

    "int4-exact" and "int8-exact" are those codes as well, run with exact arithmetic. Raises
    DerbyError for a precision other than the stored one, and where the graph lacks a node.
    """
    stored = stored_precision(path.parent)
    if spec.precision.removesuffix("-exact") != stored:
        raise unknown("precision", spec.precision, (stored,))
    return _with_interface(core().read_model(path), files)


def _save(model: "ov.Model", folder: Path) -> None:
    import openvino as ov

    ov.save_model(model, folder / IR[0], compress_to_fp16=False)


def _with_interface(model: "ov.Model", files: ModelFiles) -> "ov.Model":
    """The same weights behind the interface that the head of this file describes."""
    import openvino as ov
    from openvino import opset13 as ops

    sliding = files.sliding
    inputs = {parameter.get_friendly_name(): parameter for parameter in model.get_parameters()}
    if odd := sorted(EXPORTED ^ inputs.keys()):
        raise unsupported(files, f"odd or missing input {odd[0]!r}")
    bias = _parameter([-1, 1, -1, -1], ov.Type.f32, "attention_bias")
    rows = _parameter([-1], ov.Type.i64, "rows")
    biases = [bias]
    if 0 < sum(sliding) < len(sliding):
        biases.append(_parameter([-1, 1, -1, -1], ov.Type.f32, "sliding_bias"))

    kind = "ScaledDotProductAttention"  # one a layer; its fourth input is the mask
    attention = [node for node in model.get_ordered_ops() if node.get_type_name() == kind]
    if not attention or any(len(node.inputs()) < 4 for node in attention):
        raise unsupported(files, f"no {kind} with a mask")
    if len(biases) > 1 and len(attention) != len(sliding):
        raise unsupported(files, f"{len(attention)} attentions, {len(sliding)} layers")
    for index, node in enumerate(attention):
        own = biases[-1] if sliding and sliding[index] else bias
        node.input(3).replace_source_output(own.output(0))

    # Whatever else reads the padding mask learns that all P+n tokens are real.
    lengths = ops.gather(ops.shape_of(bias), ops.constant([0, 3]), ops.constant(0))
    ones = ops.broadcast(ops.constant(1, ov.Type.i64), lengths)
    for reader in inputs.pop("attention_mask").output(0).get_target_inputs():
        reader.replace_source_output(ones.output(0))

    head = _output_projection(model, files).input(0)
    chosen = ops.gather(head.get_source_output(), rows, ops.constant(1))
    head.replace_source_output(chosen.output(0))

    order = [inputs[name] for name in ("input_ids", "position_ids", "beam_idx")]
    build: Any = ov.Model  # its stubs reject every call
    return build(
        model.get_results(),
        model.get_sinks(),
        [*order, *biases, rows],
        architecture(files),
    )


#: What the exporter puts into the names of a decoder layer's nodes.
_LAYER = re.compile(r"\blayers\.(\d+)\b")


def show_states(model: "ov.Model") -> None:
    """Have a graph show what each decoder layer but the first is given, as outputs beside the
    logits: what nodes of a layer read of the layer before. They cost a pass nothing, so a draft may
    read any, and no IR is made anew. A graph whose nodes have other names shows none.
    """
    import openvino as ov
    from openvino import opset13 as ops

    given: dict[int, dict[tuple[str, int], Any]] = {}
    for node in model.get_ordered_ops():
        for source in (port.get_source_output() for port in node.inputs()):
            own, before = (
                _LAYER.search(each.get_friendly_name()) for each in (node, source.get_node())
            )
            rank = source.get_partial_shape().rank
            if own and before and int(own[1]) == int(before[1]) + 1 and rank == ov.Dimension(3):
                place = source.get_node().get_name(), source.get_index()
                given.setdefault(int(own[1]), {})[place] = source
    if all(len(sources) == 1 for sources in given.values()):
        for layer, sources in given.items():
            result = ops.result(*sources.values(), name=states_of(layer))
            result.output(0).set_names({states_of(layer)})
            model.add_results([result])


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
