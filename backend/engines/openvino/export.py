"""From a Hugging Face folder to an OpenVINO IR that takes any attention mask, prepared once.

The IR is stateful (it holds the KV cache) and its interface is, for n new tokens after P cached
ones, batch 1:

    input_ids       i64 [1, n]
    position_ids    i64 [1, n]
    beam_idx        i32 [1]             always 0
    attention_bias  f32 [1, 1, n, P+n]  added to the scores: 0 visible, the f32 minimum hidden
    rows            i64 [r]             which of the n new tokens get logits; may be empty
    logits          f32 [1, r, V]       the first output
    features        f32 [1, n, D]       the second: what the output projection reads, of all rows
"""

import json
import warnings
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from backend.engines.openvino.compress import COMPRESSORS
from backend.errors import DerbyError
from backend.models.files import ModelFiles, Say, model_files
from backend.models.prepared import prepared
from backend.types import ModelSpec

if TYPE_CHECKING:
    import openvino as ov

IR = "openvino_model.xml"

#: Raise it whenever the code below writes something else.
RECIPE = "openvino v2"

EXPORTED = {"input_ids", "attention_mask", "position_ids", "beam_idx"}

#: Operations between the output projection and the logits that change no logit's place.
EACH_LOGIT_ALONE = {"Result", "Convert", "Multiply", "Divide", "Tanh", "Add"}


def openvino_ir(spec: ModelSpec, say: Say) -> Path:
    """The folder with the IR of `spec` (openvino_model.xml and .bin), made if need be.

    fp32 is the reference; int8 and int4 are its weights compressed. Raises DerbyError for an
    unknown precision and for an architecture without the expected attention or output pattern.
    """
    if spec.precision not in ("fp32", *COMPRESSORS):
        raise DerbyError(f"OpenVINO runs fp32, int8 and int4, not {spec.precision!r}: choose one.")
    files = model_files(spec.name, say)

    def build(folder: Path) -> None:
        if spec.precision == "fp32":
            say(f"Converting {spec.name} to OpenVINO...")
            model = _with_interface(_export(files, folder), _architecture(files))
        else:
            original = openvino_ir(replace(spec, precision="fp32"), say)
            say(f"Compressing {spec.name} to {spec.precision}...")
            model = COMPRESSORS[spec.precision](_read(original / IR))
        _save(model, folder / IR)

    name = f"openvino-{spec.precision}-{files.fingerprint[:16]}"
    return prepared(name, f"{RECIPE} {spec.precision} of {files.fingerprint}", build)


def available_devices() -> list[str]:
    """Names that an OpenVINO engine accepts as its device, "AUTO" last."""
    import openvino as ov

    return [*ov.Core().available_devices, "AUTO"]


def prepare_all(say: Say) -> None:
    """Prepare what the app needs to start: the built-in model's fp32 and int4 IR, and its draft."""
    # It needs this file's conversions itself.
    from backend.heads.file import SHIPPED, read_head
    from backend.heads.openvino_head import head_ir

    for precision in ("fp32", "int4"):
        openvino_ir(ModelSpec(precision=precision), say)
    head_ir(read_head(SHIPPED), ModelSpec(), say)


def _architecture(files: ModelFiles) -> str:
    return json.loads((files.folder / "config.json").read_text()).get("model_type", "unknown")


def _unsupported(architecture: str, lacking: str) -> DerbyError:
    return DerbyError(
        f"The architecture {architecture!r} cannot run on OpenVINO here ({lacking}): "
        "choose the torch engine or another model."
    )


def _read(path: Path) -> "ov.Model":
    import openvino as ov

    return ov.Core().read_model(path)


def _save(model: "ov.Model", path: Path) -> None:
    import openvino as ov

    ov.save_model(model, path, compress_to_fp16=False)


def _export(files: ModelFiles, folder: Path) -> "ov.Model":
    """The stateful fp32 model as optimum-intel exports it."""
    import openvino as ov
    import torch
    from optimum.exporters.openvino import main_export
    from optimum.intel import OVConfig

    with TemporaryDirectory(dir=folder) as scratch, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about code that is not ours
        try:
            main_export(
                str(files.folder),
                scratch,
                task="text-generation-with-past",
                library_name="transformers",
                ov_config=OVConfig(dtype="fp32"),
                model_loading_kwargs={"dtype": torch.float32},
                stateful=True,
                convert_tokenizer=False,
            )
        except ValueError as error:
            raise _unsupported(_architecture(files), f"optimum-intel says: {error}") from error
        # Read without mapping: the scratch folder is about to go.
        return ov.Core().read_model(Path(scratch) / IR, config={"ENABLE_MMAP": False})


def _with_interface(model: "ov.Model", architecture: str) -> "ov.Model":
    """The same weights behind the interface that the head of this file describes."""
    import openvino as ov
    from openvino import opset13 as ops

    inputs = {parameter.get_friendly_name(): parameter for parameter in model.get_parameters()}
    if set(inputs) != EXPORTED:
        raise _unsupported(architecture, f"its inputs are {sorted(inputs)}")
    bias = _parameter([-1, 1, -1, -1], ov.Type.f32, "attention_bias")
    rows = _parameter([-1], ov.Type.i64, "rows")

    attention = [n for n in model.get_ops() if n.get_type_name() == "ScaledDotProductAttention"]
    if not attention or any(len(node.inputs()) < 4 for node in attention):
        raise _unsupported(architecture, "its attention takes no mask")
    for node in attention:
        node.input(3).replace_source_output(bias.output(0))

    # Whatever else reads the padding mask learns that all P+n tokens are real.
    lengths = ops.gather(ops.shape_of(bias), ops.constant([0, 3]), ops.constant(0))
    ones = ops.broadcast(ops.constant(1, ov.Type.i64), lengths)
    for reader in inputs.pop("attention_mask").output(0).get_target_inputs():
        reader.replace_source_output(ones.output(0))

    head = _output_projection(model, architecture).input(0)
    features = head.get_source_output()
    chosen = ops.gather(features, rows, ops.constant(1))
    head.replace_source_output(chosen.output(0))
    hidden = ops.result(features, name="features")

    order = [inputs[name] for name in ("input_ids", "position_ids", "beam_idx")]
    build: Any = ov.Model  # its stubs reject every call
    return build(
        [*model.get_results(), hidden], model.get_sinks(), [*order, bias, rows], architecture
    )


def _parameter(shape: list[int], kind: "ov.Type", name: str) -> "ov.Node":
    import openvino as ov
    from openvino import opset13 as ops

    parameter = ops.parameter(ov.PartialShape(shape), kind, name)
    parameter.output(0).set_names({name})
    return parameter


def _output_projection(model: "ov.Model", architecture: str) -> "ov.Node":
    """The matmul nearest to the logits, through scales and caps that act on each logit alone."""
    node = model.output("logits").get_node()
    while node.get_type_name() in EACH_LOGIT_ALONE:
        node = node.input(0).get_source_output().get_node()
    if node.get_type_name() != "MatMul" or node.input(0).get_partial_shape().rank.get_length() != 3:
        raise _unsupported(architecture, "its logits do not come from a matrix product")
    return node
