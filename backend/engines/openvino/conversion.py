"""From a model in torch to an OpenVINO graph, by optimum-intel, and the check of what came out."""

import gc
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from backend.engines.openvino.core import EXACT, core
from backend.engines.openvino.session import OpenVINOSession
from backend.errors import DerbyError, chain
from backend.models.checkpoint import loading_error
from backend.models.files import ModelFiles
from backend.types import Logits, ModelSpec, chain_parents

if TYPE_CHECKING:
    import openvino as ov

#: Rows of the passes that a conversion is checked with.
WIDTHS = (16, 1, 1, 6, 16)

#: A conversion's logits may differ from torch's by this share of the largest: float32 rounds by
#: some 1e-6 in tiny models and 1e-5 in deep ones; a wrong mask or position changes them by 1e-2.
ROUNDING = 3e-4

#: How torch says that it could not allocate: a RuntimeError like any other.
NO_MEMORY = "can't allocate memory"


class RefusedError(DerbyError):
    """The model cannot be converted as asked."""


def architecture(files: ModelFiles) -> str:
    config = json.loads((files.folder / "config.json").read_text(encoding="utf-8"))
    return str(config.get("model_type", "unknown"))


def unsupported(files: ModelFiles, lacking: str) -> RefusedError:
    """Why the model cannot run."""
    kind = architecture(files)
    return RefusedError(
        f"OpenVINO cannot run this {kind} model ({lacking}): choose another engine or model."
    )


@dataclass(frozen=True, slots=True)
class Probe:
    """What torch says of a model: the logits float32 [n, V] behind some tokens int64 [n], and where
    it caps attention's scores (0: nowhere).
    """

    tokens: NDArray[np.int64]
    logits: Logits
    cap: float

    def require_equal(self, ir: Path, files: ModelFiles) -> None:
        """Raise RefusedError unless the IR computes the same, but for float32's rounding, in passes
        of one and of several rows, behind caches with holes.
        """
        if np.isnan(self.logits).any():  # damaged weights, which whoever runs them says
            return
        difference = float(np.abs(self._computed(ir, files) - self.logits).max())
        largest = float(np.abs(self.logits).max())
        if not difference <= ROUNDING * largest:  # NaN is refused too
            raise unsupported(files, f"logits off by {difference / largest:.2g}")

    def _computed(self, ir: Path, files: ModelFiles) -> Logits:
        """The logits [n, V] of the IR, computed as engines do."""
        model = core().compile_model(ir, "CPU", EXACT)
        request = model.create_infer_request()
        session, computed = OpenVINOSession(request, 1 << 20, files.window, 0), []
        for tokens in np.split(self.tokens, np.cumsum(WIDTHS)[:-1]):
            width, rows = len(tokens), range(len(tokens))
            new, parents = tokens.tolist(), chain_parents(width)
            if width > 1:  # and the last one's sibling, which is forgotten then
                new, parents = [*new, 0], (*parents, width - 2)
            computed.append(session.forward(new, parents, rows))
            session.keep(rows)
        session.close()
        return np.concatenate(computed)


def converted(files: ModelFiles, name: str, folder: Path) -> "tuple[ov.Model, Probe]":
    """The stateful fp32 graph as optimum-intel makes it, and what torch computes with the model;
    `folder` takes what is written on the way. Raises DerbyError.
    """
    import openvino as ov
    from transformers import AutoConfig

    from backend.engines.torch.loading import fix_positions, load_model, text_config

    try:
        whole = AutoConfig.from_pretrained(files.folder, trust_remote_code=False)
    except Exception as error:  # whatever its makers wrote
        raise loading_error(name, f"The model {name!r} cannot be loaded", error) from error
    exporter = exporter_for(text_config(whole).model_type)
    if exporter is None:
        raise unsupported(files, "no exporter")
    model = load_model(ModelSpec(name, "torch", "fp32"), files, {}).eval()
    # A pass of the probe would otherwise have longrope share a tensor, which no trace takes.
    fix_positions(model)
    probe = _probe(model, files.vocab_size)
    if model._supports_sdpa:  # noqa: SLF001 (see the torch engine)
        model.set_attn_implementation("sdpa")
    with TemporaryDirectory(dir=folder) as scratch:
        path = Path(scratch) / "exported.xml"
        _export(model, exporter, path, files)
        del model
        gc.collect()
        # Read without mapping: the scratch folder is about to go.
        return ov.Core().read_model(path, config={"ENABLE_MMAP": False}), probe


@contextmanager
def traced_once() -> Iterator[None]:
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


def exporter_for(architecture: str) -> Callable[..., Any] | None:
    """Makes optimum-intel's description of how a model of this type is exported, from the model's
    configuration; None: there is none.

    The ranges of transformers' versions that it states for many types are left out, because they
    say what was tried, not what works; the check that follows tells.
    """
    from optimum.exporters.openvino.model_configs import TasksManager  # registers them

    try:
        known = TasksManager.get_supported_tasks_for_model_type(
            architecture, "openvino", library_name="transformers"
        )
        stated: Any = known["text-generation-with-past"]
    except KeyError:
        return None
    unlimited = {"MIN_TRANSFORMERS_VERSION": None, "MAX_TRANSFORMERS_VERSION": None}
    described = type(stated.func.__name__, (stated.func,), unlimited)
    return partial(described, **stated.keywords, use_past_in_inputs=True)


def _probe(model: Any, vocabulary: int) -> Probe:
    import torch

    tokens = np.random.default_rng(0).integers(0, vocabulary, sum(WIDTHS))
    with torch.inference_mode():
        logits = model(torch.from_numpy(tokens)[None], use_cache=False).logits[0]
    config = model.config.get_text_config(decoder=True)
    cap = getattr(config, "attn_logit_softcapping", None) or 0
    return Probe(tokens, logits.float().numpy(), cap)


def _export(model: Any, exporter: Callable[..., Any], path: Path, files: ModelFiles) -> None:
    """Write the graph of a torch model. Raises RefusedError."""
    from optimum.exporters.openvino.convert import export
    from optimum.intel import OVConfig

    with traced_once(), warnings.catch_warnings():
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
            said = (str(first).strip() or type(first).__name__).partition("\n")[0]
            said = said.partition(" (/")[0]  # without the place of a package
            if NO_MEMORY in str(first):
                raise MemoryError(said) from error
            raise unsupported(files, f"{said:.200}") from error
