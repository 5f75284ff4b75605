"""A measurement waits for a quiet machine, and says so if there is none."""

from backend.bench.quiet import QUIET, look, wait_for_quiet
from backend.events import Conditions


def shares(*others: float) -> list[Conditions]:
    return [Conditions(2, share) for share in others]


def test_a_quiet_machine_is_not_waited_for() -> None:
    said: list[str] = []
    wait_for_quiet(5, said.append, iter(shares(QUIET)).__next__)
    wait_for_quiet(0, said.append, iter(shares()).__next__)
    assert said == []


def test_quiet_that_comes_is_waited_for() -> None:
    said: list[str] = []
    wait_for_quiet(5, said.append, iter(shares(0.6, 0.4, 0.02)).__next__)
    (sentence,) = said
    assert "used 60% of 2 cores" in sentence


def test_quiet_that_does_not_come_is_said() -> None:
    said: list[str] = []
    wait_for_quiet(3, said.append, iter(shares(0.5, 0.5, 0.5)).__next__)
    assert said[-1].startswith("The machine did not become quiet")


def test_a_look_is_of_others_alone() -> None:
    assert 0 <= look(0.05).others <= 1
