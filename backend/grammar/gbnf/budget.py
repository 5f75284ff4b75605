"""A bound on the work that looking for lexemes may take."""


class TooLargeError(Exception):
    """More than is worth looking into."""


class Budget:
    """Steps that are left: a loop's every turn spends one."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def spend(self, steps: int = 1) -> None:
        """Take steps away. Raises TooLargeError when there are none left."""
        self._left -= steps
        if self._left < 0:
            raise TooLargeError
