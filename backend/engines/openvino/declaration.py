"""What the app knows of the OpenVINO engine before anything of it is loaded."""

from backend.engines.base import Engine
from backend.engines.declaration import EngineDeclaration, Say
from backend.engines.openvino.abilities import BYTES, EXACT_PRECISIONS
from backend.models.files import IR, is_ready_made, model_folder, weights_in
from backend.types import ModelSpec


def devices() -> tuple[str, ...]:
    """CPU first: it is on every machine, and what the built-in figures refer to."""
    from backend.engines.openvino.core import available_devices

    return tuple(sorted(available_devices(), key=lambda name: name != "CPU"))


def open_engine(spec: ModelSpec, say: Say) -> Engine:
    from backend.engines.openvino.engine import open_openvino

    return open_openvino(spec, say)


def estimate_bytes(spec: ModelSpec, say: Say) -> int:
    folder = model_folder(spec.name, say)
    if is_ready_made(folder):
        return (folder / IR[1]).stat().st_size
    # An unknown precision is refused when it is opened.
    return round(weights_in(folder) * BYTES.get(spec.precision, 0))


def peak_bytes(spec: ModelSpec, say: Say) -> int:
    from backend.engines.openvino.export import conversion_bytes

    return conversion_bytes(spec, say)


OPENVINO = EngineDeclaration(
    name="openvino",
    title="OpenVINO",
    precisions=tuple(dict.fromkeys((ModelSpec().precision, *BYTES))),
    devices=devices,
    device_help="CPU, GPU, NPU or AUTO",
    open=open_engine,
    estimate_bytes=estimate_bytes,
    peak_bytes=peak_bytes,
    exact=EXACT_PRECISIONS,
)
