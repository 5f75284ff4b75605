"""An error is a sentence that its user can mend, or a reference to the log."""

import errno
import os

import pytest

from backend.errors import explain

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
    reference = sentence.rpartition("reference ")[2].removesuffix(").")
    assert len(reference) == 8
    assert reference in caplog.text
