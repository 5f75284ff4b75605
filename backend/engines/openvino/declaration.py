"""What the app knows of the OpenVINO engine before anything of it is loaded."""

from backend.engines.base import Engine
from backend.engines.declaration import EngineDeclaration, Say
from backend.models.files import IR, model_files
from backend.models.weights import count_weights
from backend.types import Capabilities, ModelSpec

#: Bytes that a weight takes: int8 with one scale and zero point a row; int4 with one in every 32 at
#: the least, and 8 bits for the output projection.
BYTES = {"fp32": 4.0, "int8": 1.02, "int4": 0.8}


def devices() -> tuple[str, ...]:
    """CPU first: it is on every machine, and what the built-in figures refer to."""
    from backend.engines.openvino.export import available_devices

    return tuple(sorted(available_devices(), key=lambda name: name != "CPU"))


def open_engine(spec: ModelSpec, say: Say) -> Engine:
    from backend.engines.openvino.engine import open_openvino

    return open_openvino(spec, say)


def estimate_bytes(spec: ModelSpec, say: Say) -> int:
    files = model_files(spec.name, say)
    if files.ready_made:
        return (files.folder / IR[1]).stat().st_size
    # An unknown precision is refused when it is opened.
    return round(count_weights(spec.name, say) * BYTES.get(spec.precision, 0))


OPENVINO = EngineDeclaration(
    name="openvino",
    title="OpenVINO",
    precisions=tuple(BYTES),
    devices=devices,
    device_help="CPU, GPU, NPU or AUTO",
    open=open_engine,
    estimate_bytes=estimate_bytes,
    capabilities=Capabilities(tree=True, hidden_states=True),
)
