"""From a model in torch to an OpenVINO graph, by optimum-intel."""

import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from backend.engines.self_test import sample
from backend.errors import DerbyError, chain
from backend.models.checkpoint import loading_error, read_object
from backend.models.files import ModelFiles
from backend.types import Logits, ModelSpec

if TYPE_CHECKING:
    import openvino as ov

#: How torch says that it could not allocate: a RuntimeError like any other.
NO_MEMORY = "can't allocate memory"


def architecture(files: ModelFiles) -> str:
    config = read_object(files.folder / "config.json", files.folder.name)
    return str(config.get("model_type", "unknown"))


def unsupported(files: ModelFiles, lacking: str) -> DerbyError:
    """Why the model cannot run."""
    kind = architecture(files)
    return DerbyError(
        f"OpenVINO cannot run this {kind} model ({lacking}): choose another engine or model."
    )


class Converted(NamedTuple):
    """A stateful fp32 graph as optimum-intel makes it; torch's logits [n, V] of the self-test's
    text; and where the model caps attention's scores, which the graph may have lost (0: nowhere).
    """

    graph: "ov.Model"
    logits: Logits
    cap: float


def converted(files: ModelFiles, name: str, folder: Path) -> Converted:
    """The model as a graph; `folder` takes what is written on the way. Raises DerbyError."""
    import openvino as ov
    import torch
    from transformers import AutoConfig

    from backend.engines.torch.loading import fix_positions, load_model, text_config

    try:
        whole = AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
    except Exception as error:  # whatever its makers wrote
        raise loading_error(name, f"The model {name!r} cannot be loaded", error) from error
    exporter = _exporter(text_config(whole).model_type)
    if exporter is None:
        raise unsupported(files, "no exporter")
    model = load_model(ModelSpec(name, "torch", "fp32"), files, {}).eval()
    # This pass would otherwise have longrope share a tensor, which no trace takes.
    fix_positions(model)
    with torch.inference_mode():
        tokens = torch.tensor([sample(files.vocab_size)])
        logits = model(tokens, use_cache=False).logits[0].float().numpy()
    config = model.config.get_text_config(decoder=True)
    cap = getattr(config, "attn_logit_softcapping", None) or 0
    if model._supports_sdpa:  # noqa: SLF001 (see the torch engine)
        model.set_attn_implementation("sdpa")
    with TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / "exported.xml"
        _export(model, exporter, path, files)
        del model
        gc.collect()
        # Read without mapping: the scratch folder is about to go.
        graph = ov.Core().read_model(path, config={"ENABLE_MMAP": False})
    return Converted(graph, logits, cap)


@contextmanager
def _traced_once() -> Iterator[None]:
    """Leave out the check with which torch ends a trace: it traces the module twice more, 7 s for
    the built-in model, and says in a warning whether the values came out the same.
    """
    import torch

    trace = torch.jit.trace
    torch.jit.trace = partial(trace, check_trace=False)
    try:
        yield
    finally:
        torch.jit.trace = trace


def _exporter(architecture: str) -> Callable[..., Any] | None:
    """Makes optimum-intel's description of how a model of this type is exported, from the model's
    configuration; None: there is none.

    The ranges of transformers' versions that it states for many types are left out, because they
    say what was tried, not what works; the check that follows tells.
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
    from optimum.exporters.openvino.convert import export
    from optimum.intel import OVConfig

    with _traced_once(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer's, about code that is not ours
        try:
            export(
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
            *_, first = chain(error)
            words = (str(first).strip() or type(first).__name__).partition("\n")[0]
            words = words.partition(" (/")[0]  # without the place of a package
            if NO_MEMORY in str(first):
                raise MemoryError(words) from error
            raise unsupported(files, f"{words:.200}") from error
