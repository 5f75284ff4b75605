"""An error is a sentence that its user can mend, or a reference to the log; where it happened is
for the log alone; whose fault it is travels with its event.
"""

import errno
import logging
import os
import pickle

import pytest

from backend.errors import DerbyError, explain
from backend.events import failures, from_json, to_json

PLACE = "/srv/derby/cache"


def refused(number: int) -> OSError:
    return OSError(number, os.strerror(number), PLACE)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (MemoryError(), "fewer columns, a smaller model or a shorter text"),
        (refused(errno.ENOSPC), "cannot be read or written"),
        (refused(errno.EACCES), "cannot be read or written"),
        (ValueError(PLACE), "not in your input"),
    ],
)
def test_an_error_is_a_sentence_with_a_remedy_and_its_reference_is_in_the_log(
    error: Exception, remedy: str, caplog: pytest.LogCaptureFixture
) -> None:
    sentence = explain(error)
    assert remedy in sentence
    assert PLACE not in sentence
    assert sentence.endswith(").")
    reference = sentence.rpartition("reference ")[2].removesuffix(").")
    assert len(reference) == 8
    assert reference in caplog.text


def test_where_on_the_machine_is_for_the_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    error = pickle.loads(pickle.dumps(DerbyError("The disk is full.", PLACE)))  # noqa: S301
    assert explain(error) == "The disk is full."
    assert PLACE in caplog.text
    assert error.with_place.startswith("The disk is full.")
    assert PLACE in error.with_place
    assert DerbyError("Plain.").with_place == "Plain."


@pytest.mark.parametrize("error", [DerbyError("Choose less."), ValueError("a slip")])
def test_an_error_ends_each_column_and_travels_with_its_event(error: Exception) -> None:
    ends = failures((2, 5), pickle.loads(pickle.dumps(error)))  # noqa: S301
    assert [end.column for end in ends] == [2, 5]
    assert [from_json(to_json(end)) for end in ends] == ends
