"""A page's models have titles: no event, record or error of their races says where they lie."""

import json
from contextlib import closing
from pathlib import Path

import chat_model
import pytest
from chat_model import Damage, holding, without
from race_runs import never, streamed

from backend.errors import DerbyError
from backend.events import Failed, Finished, to_json
from backend.form import read_race
from backend.models.files import give_titles, without_folders
from backend.offer import Offer, offer_of, titled
from backend.racing.hosts import Host, ProcessHost
from backend.racing.race import Race
from backend.records.file import as_bytes
from backend.records.record import recorded

#: Two folders of one name, in places with a space.
PLACES = ("a place", "b place")
ENGINES = ("torch", "openvino")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECODE_DERBY_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def titles(tmp_path: Path) -> dict[str, str]:
    folders = [chat_model.make(tmp_path / place / "mine") for place in PLACES]
    return dict(titled([str(folder) for folder in folders], ENGINES))


def race_of(titles: dict[str, str], **form: str) -> Race:
    offer: Offer = offer_of(ENGINES, titles)
    usual = {"prompt": "Who?", "max_new_tokens": 8, "model": "mine"}
    return read_race({**usual, **form}, offer)


def test_a_race_of_local_folders_knows_them_by_their_titles_alone(
    titles: dict[str, str], tmp_path: Path
) -> None:
    """Of the target, of a column's own model, and of a draft; in the worker as here."""
    lineup = "kv:model=mine-2\nspeculative:draft=mine-2\ntransformers:draft=mine-2"
    race = race_of(titles, engine="torch", lineup=lineup)
    with closing(ProcessHost(titles=titles)) as host:
        events = list(streamed(host, race, never))
    assert sum(isinstance(event, Finished) for event in events) == len(race.columns)
    texts = [json.dumps(to_json(event)) for event in events]
    texts.append(as_bytes(recorded(race.request, race.columns, race.target, events)).decode())
    assert "mine-2" in texts[-1]
    assert not any(str(tmp_path) in text or "place/mine" in text for text in texts)


DAMAGES: dict[str, Damage] = {
    "a config that is cut": holding("config.json", '{"model_type": "ll'),
    "no tokenizer": without("tokenizer.json", "tokenizer_config.json"),
    "weights that are none": holding("model.safetensors", "no weights"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_an_error_of_loading_names_the_title_and_no_place(
    titles: dict[str, str], tmp_path: Path, damage: Damage
) -> None:
    damage(Path(titles["mine"]))
    lineup = "kv@torch\nkv@openvino\ntransformers\nopenvino_genai\nllamacpp"
    give_titles(titles)
    race = race_of(titles, engine="torch", lineup=lineup)
    events = list(streamed(Host(), race, never))
    failed = [event for event in events if isinstance(event, Failed)]
    assert failed
    for event in failed:
        assert "mine" in event.message
        assert str(tmp_path) not in event.message
        assert "place" not in event.message


def test_what_libraries_say_names_files_without_their_folders() -> None:
    message = (
        "no file in '/srv/my models/mine/config.json', /srv/x/mine or ~/y/z (see https://a.b/c)"
    )
    assert without_folders(message) == "no file in 'config.json', mine or z (see https://a.b/c)"


def test_a_title_is_no_other_model_s(tmp_path: Path) -> None:
    """A folder that is called like the built-in model; files keep the ending of their kind."""
    folder = tmp_path / "built-in"
    folder.mkdir()
    files = [tmp_path / place / "m.gguf" for place in PLACES]
    for file in files:
        file.parent.mkdir()
        file.touch()
    titles = titled([str(folder), *map(str, files), str(folder)], ENGINES)
    assert list(titles) == ["built-in-2", "m.gguf", "m-2.gguf"]
    for name in ("mine", str(tmp_path / "none")):
        with pytest.raises(DerbyError, match="no model"):
            titled([name], ENGINES)
