"""What a user can fix, as one sentence, and the check that most often says one."""


class DerbyError(Exception):
    """Something the user can fix, said in one sentence: the value, the limit and the remedy."""


def check_range(name: str, value: float, low: float, high: float) -> None:
    """Raise DerbyError unless low <= value <= high (NaN is refused too)."""
    if not low <= value <= high:
        raise DerbyError(f"{name} is {value}; it must lie between {low} and {high}.")
