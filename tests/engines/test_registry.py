"""Each engine is declared once; whatever else the app knows of engines it reads there."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from packages import install

from backend.engines import registry
from backend.engines.engine import EngineDeclaration
from backend.engines.fake import FAKE
from backend.engines.registry import (
    all_precisions,
    copy_spec,
    device_help,
    engine_help,
    engine_named,
    engines,
    offered_engines,
    plugin_problems,
    precision_help,
)
from backend.errors import DerbyError
from backend.offer import offer_of
from backend.racing.models import LoadedModels
from backend.types import ModelSpec

BACKEND = Path(registry.__file__).parents[1]


def test_the_fake_engine_is_named_in_its_own_module_alone() -> None:
    """It was named in eight: menu, costs, drafts, editor, help, pool... and each had to know it."""
    files = (path for path in BACKEND.rglob("*.py") if "fake" in path.read_text().lower())
    named = {path.relative_to(BACKEND).as_posix() for path in files}
    assert named == {"engines/fake.py", "engines/registry.py"}


def test_the_default_model_runs_on_an_engine_at_its_default_precision() -> None:
    default = ModelSpec()
    assert next(iter(engines())) == default.engine
    declared = engine_named(default.engine)
    assert declared.precisions[0] == default.precision
    assert not declared.demo


def test_engines_that_stand_in_for_a_model_are_offered_only_where_asked_for() -> None:
    assert offered_engines() == ("openvino", "torch")
    assert offered_engines(demo=True) == ("fake",)
    assert set(all_precisions()) == {
        *("fp32", "int8", "int4", "int4-exact", "int8-exact"),
        *("bf16", "fp16"),
    }
    offer = offer_of(offered_engines(demo=True), ("fake-priced",))
    assert offer.models == (*FAKE.models, "fake-priced"), "the first one is the default"
    assert [runtime.title for runtime in offer.runtimes] == ["Fake"]


def test_an_unknown_engine_is_one_sentence() -> None:
    with pytest.raises(DerbyError, match=r"'onnx'.*openvino, torch or fake"):
        engine_named("onnx")
    with pytest.raises(DerbyError, match="'onnx'"):
        offer_of(("onnx",))


def test_the_command_line_says_what_is_declared() -> None:
    assert engine_help() == "openvino, torch or fake."
    assert precision_help() == (
        "openvino: fp32, int8, int4, int4-exact, int8-exact; torch: fp32, bf16, fp16."
    )
    assert device_help() == ("CPU, GPU, NPU or AUTO (openvino); CPU, CUDA or AUTO (torch).")


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


def test_a_copy_in_a_precision_that_nobody_has_is_one_sentence() -> None:
    with pytest.raises(DerbyError, match=r"'int3'.*int8"):
        copy_spec(ModelSpec(), "int3")


@pytest.mark.parametrize(
    "flaw",
    [{"name": "My Engine"}, {"name": "a@b"}, {"title": ""}, {"precisions": ()}, {"models": ()}],
)
def test_a_declaration_that_cannot_be_shown_is_refused(flaw: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="invalid engine"):
        replace(FAKE, **flaw)


def test_opened_engines_can_do_what_was_declared() -> None:
    opened = FAKE.open(ModelSpec("fake", "fake"), print)
    assert opened.weight_bytes == FAKE.estimate_bytes(opened.spec, print)


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
    pass_seconds=lambda spec: {},
)
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package with a good engine, and one that brings a broken one."""
    for name, module in (("parrot_engine", PARROT), ("broken_engine", "import no_such_library")):
        install(tmp_path, name, module, registry.GROUP, f"{name} = {name}:PARROT")
    monkeypatch.syspath_prepend(tmp_path)
    registry._registered.cache_clear()
    yield
    registry._registered.cache_clear()


@pytest.mark.usefixtures("installed")
def test_the_engine_of_another_package_is_offered_and_runs() -> None:
    assert isinstance(engine_named("parrot"), EngineDeclaration)
    offer = offer_of(offered_engines())
    assert [runtime.engine for runtime in offer.runtimes] == [
        "openvino",
        "torch",
        "parrot",
    ]
    assert offer.models == ("built-in", "polly")
    assert "cage (parrot)" in device_help()
    spec, said = ModelSpec("polly", "parrot", "words", "cage"), list[str]()
    assert LoadedModels(1_000_000).get(spec, said.append).spec == spec
    assert said == ["Loading polly on parrot words (cage)..."]
    assert copy_spec(spec, "int4") == spec, "no other engine knows its models"


@pytest.mark.usefixtures("installed")
def test_a_broken_engine_of_another_package_is_one_sentence() -> None:
    [problem] = plugin_problems()
    assert "broken_engine" in problem
    assert "no_such_library" in problem
    assert "broken_engine" not in engines()
