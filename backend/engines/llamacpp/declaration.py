"""What the app knows of the llama.cpp engine before anything of it is loaded."""

from glob import escape

from backend.engines.base import Engine
from backend.engines.declaration import EngineDeclaration, Say
from backend.engines.llamacpp.abilities import AS_IT_IS, CAPABILITIES
from backend.models.files import gguf_file
from backend.types import ModelSpec


def open_engine(spec: ModelSpec, say: Say) -> Engine:
    from backend.engines.llamacpp.engine import open_llamacpp

    return open_llamacpp(spec, say)


def devices() -> tuple[str, ...]:
    from backend.engines.llamacpp.library import devices

    return devices()


def estimate_bytes(spec: ModelSpec, say: Say) -> int:
    # An unknown precision is refused when it is opened.
    if spec.precision != AS_IT_IS:
        return 0
    file = gguf_file(spec.name, say)
    # A file in several parts is named by its first.
    parts = file.parent.glob(escape(file.name).replace("-00001-of-", "-?????-of-"))
    return sum(part.stat().st_size for part in parts)


LLAMACPP = EngineDeclaration(
    name="llamacpp",
    title="llama.cpp",
    precisions=(AS_IT_IS,),
    devices=devices,
    device_help="CPU or GPU",
    open=open_engine,
    estimate_bytes=estimate_bytes,
    capabilities=CAPABILITIES,
    folders=False,
    exact=(),
)
