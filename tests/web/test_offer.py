"""What a page offers: models go by labels, and no sentence names a path of the server."""

from pathlib import Path

import pytest

from backend.web.offer import Offer, models_named, offer_of

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
