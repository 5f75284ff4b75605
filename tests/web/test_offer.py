"""What a page offers: models go by labels, and no sentence names a path of the server."""

from pathlib import Path

import chat_model
import pytest

from backend.racing import usual
from backend.types import ModelSpec
from backend.web.api import RaceCall
from backend.web.offer import HUB, Offer, models_named, offer_of

SENTENCE = "KV reuse is 1.18 times as fast... and/or ~5 % slower."


@pytest.mark.parametrize("name", [".", "..", "~", "./", "/", "./models.d", "../x"])
def test_a_short_path_does_not_turn_into_its_label_within_a_sentence(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With `--model .` every full stop that the page said became the folder's name: "1main18 times
    as fastmain".
    """
    place = tmp_path / "main" / "inside"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    offer = offer_of(["fake"], [name])
    assert offer.public(SENTENCE) == SENTENCE
    whole, label = offer.models[-1], offer.labels[str(len(offer.models) - 1)]
    assert Path(whole).is_absolute()
    assert offer.public(f"Loading {whole} on fake (model={whole}).") == (
        f"Loading {label} on fake (model={label})."
    )
    assert offer.has(name)


def test_a_path_is_hidden_wherever_it_stands() -> None:
    """One folder may lie in another, and a sentence may name a file in it."""
    hidden = "/srv/secret/models/llama"
    offer = Offer((), ("built-in", "/srv/secret", hidden, "owner/model"))
    assert offer.labels == {"0": "built-in", "1": "secret", "2": "llama", "3": "owner/model"}
    assert offer.public(f"{hidden}: {hidden}/config.json, '{hidden}'") == (
        "llama: llama/config.json, 'llama'"
    )
    assert "srv" not in offer.public(f"file://{hidden}, model={hidden}-7b and /srv/secret/x")


def test_models_are_named_by_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert models_named([".", "a/b"], ["torch"]) == (str(tmp_path), "a/b")


def test_a_large_folder_runs_at_the_second_precision_and_the_page_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line chose by size; the page began with fp32, of any model."""
    folder = chat_model.make(tmp_path / "mine")
    offer = offer_of(["openvino", "torch"], ["built-in", str(folder), "owner/model"])
    assert offer.usual_precision("1", "openvino") == ("fp32", "")
    monkeypatch.setattr(usual, "LARGE", 1e3)
    for engine, second in (("openvino", "int8"), ("torch", "bf16")):
        chosen, why = offer.usual_precision("1", engine)
        assert chosen == second
        assert why.startswith("mine would take 0.1 MB at fp32 and takes "), why
        assert why.endswith(f"near ties: {second} is what it runs at by default.")
        assert chosen == usual.usual_spec(ModelSpec(str(folder), engine), print).precision
        for key in ("0", "2", HUB):
            assert offer.usual_precision(key, engine) == ("fp32", "")
    assert RaceCall(prompt="x", model="mine").form(offer)["precision"] == "int8"
    assert RaceCall(prompt="x", model="mine", precision="fp32").form(offer)["precision"] == "fp32"
