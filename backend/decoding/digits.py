"""To how many digits measured figures are rounded before they leave the loop.

A clock reads nanoseconds, and what the machine does beside blurs tens of microseconds. A record of
a race holds thousands of such figures: digits that mean nothing would make it twice as long. What
takes turns, learns or decides reads the clock itself.
"""

from collections.abc import Mapping


def rounded(seconds: float) -> float:
    """Seconds to 10 us from 10 ms on, to 0.1 us below 10 us, else to 1 us."""
    return round(seconds, _places(seconds))


def rounded_parts(seconds: Mapping[str, float]) -> dict[str, float]:
    """A step's seconds, "total" and its parts, to what suits the total.

    The longest part takes what rounding left over: the parts add up to the total, and totals added
    up stay true, however short the same part is every time.
    """
    places = _places(seconds["total"])
    figures = {name: round(value, places) for name, value in seconds.items()}
    parts = figures.keys() - {"total"}
    longest = max(parts, key=lambda part: seconds[part])
    others = sum(figures[part] for part in parts - {longest})
    return figures | {longest: round(figures["total"] - others, places)}


def rounded_value(value: float) -> float:
    """Three significant digits; infinite stays infinite."""
    return float(f"{value:.3g}")


def _places(seconds: float) -> int:
    return 5 if seconds >= 0.01 else 6 if seconds >= 1e-5 else 7
