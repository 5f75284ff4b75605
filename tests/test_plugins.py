"""What other packages declare is found; what is broken in them is a sentence, never an error."""

import sys
from pathlib import Path

import pytest
from packages import Declaration, install

from backend.plugins import load_declared

GROUP = "decode_derby.test_things"

IMPORT = "from packages import Declaration\n"


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("raise ValueError('two\\nlines')", "ValueError: two"),
        ("import sys\nsys.exit(3)", "SystemExit"),
        ("OTHER = 1", "AttributeError"),
        (f"{IMPORT}DECLARATION = Declaration", "no Declaration"),
        (f"{IMPORT}DECLARATION = Declaration('ours')", "'ours' is taken"),
    ],
)
def test_a_broken_one_is_one_sentence_and_the_others_stay(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    module: str,
    reason: str,
) -> None:
    install(tmp_path, "bad-thing", module, GROUP, "bad = bad_thing:DECLARATION")
    fine = f"{IMPORT}DECLARATION = Declaration('fine')"
    install(tmp_path, "fine-thing", fine, GROUP, "fine = fine_thing:DECLARATION")
    monkeypatch.syspath_prepend(tmp_path)
    # Each case brings another module of the same name.
    monkeypatch.delitem(sys.modules, "bad_thing", raising=False)
    ours = Declaration("ours")
    declared = load_declared(GROUP, Declaration, [ours])
    assert list(declared) == ["ours", "fine"]
    assert declared["ours"] is ours
    [sentence] = caplog.messages
    assert "'bad' (bad-thing 0.1" in sentence
    assert "bad_thing:DECLARATION" in sentence
    assert reason in sentence
    assert "\n" not in sentence
