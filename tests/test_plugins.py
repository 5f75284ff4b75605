"""What other packages declare is found; what is broken in them is a sentence, never an error."""

import sys
from pathlib import Path

import pytest
from packages import Thing, install

from backend.plugins import load_declared

GROUP = "decode_derby.test_things"


IMPORT = "from packages import Thing\n"


def test_installed_declarations_follow_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = f"{IMPORT}THING = Thing('good')"
    install(tmp_path, "good-thing", module, GROUP, "good = good_thing:THING")
    monkeypatch.syspath_prepend(tmp_path)
    ours = Thing("ours")
    declared, problems = load_declared(GROUP, Thing, [ours])
    assert list(declared) == ["ours", "good"]
    assert declared["ours"] is ours
    assert problems == ()


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("raise ValueError('two\\nlines')", "ValueError: two"),
        ("import sys\nsys.exit(3)", "SystemExit"),
        ("OTHER = 1", "AttributeError"),
        (f"{IMPORT}THING = Thing", "no Thing"),
        (f"{IMPORT}THING = Thing('ours')", "'ours' is taken"),
    ],
)
def test_a_broken_one_is_one_sentence_and_the_others_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, reason: str
) -> None:
    install(tmp_path, "bad-thing", module, GROUP, "bad = bad_thing:THING")
    fine = f"{IMPORT}THING = Thing('fine')"
    install(tmp_path, "fine-thing", fine, GROUP, "fine = fine_thing:THING")
    monkeypatch.syspath_prepend(tmp_path)
    # Each case brings another module of the same name.
    monkeypatch.delitem(sys.modules, "bad_thing", raising=False)
    declared, problems = load_declared(GROUP, Thing, [Thing("ours")])
    assert list(declared) == ["ours", "fine"]
    [sentence] = problems
    assert "'bad' (bad-thing 0.1" in sentence
    assert "bad_thing:THING" in sentence
    assert reason in sentence
    assert "\n" not in sentence
