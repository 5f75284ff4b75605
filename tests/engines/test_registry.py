"""Each engine is declared once: the default is the first, another precision of a model runs where
some engine has it, and engines of other packages run like ours.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from packages import install

from backend.engines import registry
from backend.engines.fake import FAKE
from backend.engines.registry import (
    copy_spec,
    engine_named,
    engines,
    of_each,
    offered_engines,
)
from backend.errors import DerbyError
from backend.offer import offer_of
from backend.racing.models import LoadedModels
from backend.types import ModelSpec


def test_the_first_engine_and_its_first_precision_are_the_default() -> None:
    default = ModelSpec()
    assert next(iter(engines())) == default.engine
    assert engine_named(default.engine).precisions[0] == default.precision
    assert offered_engines() == ("openvino", "torch")
    assert offered_engines(demo=True) == ("fake",)


@pytest.mark.parametrize(
    ("spec", "refusal"),
    [
        (ModelSpec(device="TPU"), r"'TPU'.*CPU"),
        (ModelSpec(engine="torch", precision="int4"), "fp32, bf16 or fp16"),
        (ModelSpec(engine="torch", device="CUDA:99"), "CPU"),
    ],
)
def test_what_is_not_there_is_refused_with_the_choices(spec: ModelSpec, refusal: str) -> None:
    with pytest.raises(DerbyError, match=refusal):
        LoadedModels().get(spec, print)


@pytest.mark.parametrize(
    ("target", "precision", "copy"),
    [
        (ModelSpec("a/b", "openvino", "fp32", "GPU"), "int4", ("openvino", "int4", "GPU")),
        (ModelSpec("a/b", "openvino", "fp32", "GPU"), "bf16", ("torch", "bf16", "CPU")),
        (ModelSpec("a/b", "torch", "fp32", "CUDA"), "bf16", ("torch", "bf16", "CUDA")),
        (ModelSpec("a/b", "torch", "bf16", "CUDA"), "int8", ("openvino", "int8", "CPU")),
        (ModelSpec("fake-slow", "fake"), "int4", ("fake", "fp32", "CPU")),
    ],
)
def test_a_copy_runs_on_its_own_engine_where_that_has_the_precision(
    target: ModelSpec, precision: str, copy: tuple[str, str, str]
) -> None:
    assert copy_spec(target, precision) == ModelSpec(target.name, *copy)


@pytest.mark.parametrize(
    "flaw",
    [{"name": "My Engine"}, {"name": "a@b"}, {"title": ""}, {"precisions": ()}, {"models": ()}],
)
def test_a_declaration_that_cannot_be_shown_is_refused(flaw: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="invalid engine"):
        replace(FAKE, **flaw)


PARROT = """
from backend.engines.engine import EngineDeclaration
from backend.engines.fake import FakeEngine

PARROT = EngineDeclaration(
    name="parrot",
    title="Parrot",
    precisions=("words",),
    devices=lambda: ("cage",),
    device_help="cage",
    open=lambda spec, say: FakeEngine(spec),
    estimate_bytes=lambda spec, say: 1000,
    models=("polly",),
)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with an engine."""
    install(tmp_path, "parrot", PARROT, registry.GROUP, "parrot = parrot:PARROT")
    monkeypatch.syspath_prepend(tmp_path)
    engines.cache_clear()
    yield
    engines.cache_clear()


@pytest.mark.usefixtures("installed")
def test_the_engine_of_another_package_is_offered_and_runs() -> None:
    offer = offer_of(offered_engines())
    assert [engine.name for engine in offer.engines] == ["openvino", "torch", "parrot"]
    assert offer.models == ("built-in", "polly")
    assert "parrot: cage" in of_each(lambda engine: engine.device_help)
    spec = ModelSpec("polly", "parrot", "words", "cage")
    assert LoadedModels(1_000_000).get(spec, print).spec == spec
    assert copy_spec(spec, "int4") == spec, "no other engine knows its models"
