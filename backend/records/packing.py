"""JSON values of one kind as columns of bytes, which deflate makes short.

What many values have in common stands once: names, values that recur, the digits behind which a
float begins. The rest are planes of bytes: of all numbers the highest bytes, then the next ones.
Deflate codes with one alphabet at a time, so `Planes` keeps apart what is unlike: texts, the high
bytes, which are few and alike, and the lowest ones, which are noise.

A form says how values were packed; it is JSON itself, and begins with its letter:

    ["t", value, ...]            the distinct values, and a byte for each if there are several
    ["o", {name: form, ...}]     objects of the same names: each name's values
    ["l", form, form]            lists: their lengths, and all items
    ["s", form]                  texts: their lengths in bytes; UTF-8
    ["i", low, width]            whole numbers: `width` bytes for what is above `low`
    ["f", exponent, low, width]  floats: whole numbers times ten to the exponent
    ["d", low, width, form]      floats: whole numbers, and the exponent of each
    ["n", form, form]            some of them null: which ones are there, and these
    ["j", value, ...]            anything else, as it is
"""

import json
from collections.abc import Callable, Sequence
from decimal import Decimal
from math import isfinite
from typing import Any

Form = list[Any]

#: As many distinct values may be listed, if each occurs so many times on average.
FEW, OFTEN = 16, 4

#: Bytes of a whole number at most.
WIDEST = 8


class Planes:
    """Bytes by kind: texts, high bytes, low bytes. Written at their ends, read from their
    beginnings; `left` is how many more values may be read.
    """

    def __init__(self, texts: bytes = b"", high: bytes = b"", low: bytes = b"", left: int = 0):
        self.kinds = [bytearray(texts), bytearray(high), bytearray(low)]
        self._at = [0, 0, 0]
        self._left = left

    def write(self, kind: int, data: bytes) -> None:
        self.kinds[kind] += data

    def read(self, kind: int, count: int) -> bytes:
        """Raises ValueError if there are not so many bytes."""
        begin = self._at[kind]
        data = bytes(self.kinds[kind][begin : begin + count])
        if count < 0 or len(data) < count:
            raise ValueError("it ends too early")
        self._at[kind] = begin + count
        return data

    def take(self, count: int) -> None:
        """Count values that are read. Raises ValueError if they are too many."""
        self._left -= count
        if count < 0 or self._left < 0:
            raise ValueError("it holds too much")


TEXTS, HIGH, LOW = range(3)


def pack(values: Sequence[Any], planes: Planes) -> Form:
    """Write the values to `planes`; the form to read them with."""
    made = (packer(values, planes) for packer in _PACKERS)
    return next((form for form in made if form is not None), ["j", *values])


def unpack(form: Any, count: int, planes: Planes) -> list[Any]:
    """The values, `count` of them, that `pack` packed. Raises ValueError, or what Python raises of
    wrong types, for what it cannot have packed.
    """
    planes.take(count)
    read = _READERS[form[0]](form, count, planes) if count else []
    if len(read) != count:
        raise ValueError(f"{len(read)} values instead of {count}")
    return read


def _pack_few(values: Sequence[Any], planes: Planes) -> Form | None:
    """Whole numbers are as short themselves as places in a list."""
    keys = [_key(value) for value in values]
    distinct = dict(zip(keys, values, strict=True))
    few = 1 if {type(value) for value in values} == {int} else FEW
    if len(distinct) > min(few, max(len(values) // OFTEN, 1)):
        return None
    places = {key: place for place, key in enumerate(distinct)}
    if len(distinct) > 1:
        planes.write(HIGH, bytes(places[key] for key in keys))
    return ["t", *distinct.values()]


def _key(value: Any) -> Any:
    """What values have in common that are written alike."""
    return json.dumps(value) if isinstance(value, list | dict) else (type(value), value)


def _pack_some(values: Sequence[Any], planes: Planes) -> Form | None:
    there = [value for value in values if value is not None]
    if len(there) == len(values):
        return None
    return ["n", pack([value is not None for value in values], planes), pack(there, planes)]


def _pack_objects(values: Sequence[Any], planes: Planes) -> Form | None:
    if not _all(values, dict) or len({tuple(value) for value in values}) > 1:
        return None
    return ["o", {name: pack([value[name] for value in values], planes) for name in values[0]}]


def _pack_lists(values: Sequence[Any], planes: Planes) -> Form | None:
    if not _all(values, list):
        return None
    lengths = pack([len(value) for value in values], planes)
    return ["l", lengths, pack([item for value in values for item in value], planes)]


def _pack_texts(values: Sequence[Any], planes: Planes) -> Form | None:
    if not _all(values, str):
        return None
    texts = [value.encode(errors="replace") for value in values]
    planes.write(TEXTS, b"".join(texts))
    return ["s", pack([len(text) for text in texts], planes)]


def _pack_whole(values: Sequence[Any], planes: Planes) -> Form | None:
    if not _all(values, int) or _width(values) > WIDEST:
        return None
    return ["i", *_planed(values, planes)]


def _pack_floats(values: Sequence[Any], planes: Planes) -> Form | None:
    """With one exponent for all, or one for each where that takes fewer bytes."""
    if not all(map(_is_decimal, values)):
        return None
    exact = [Decimal(repr(value)) for value in values]
    told = [value.as_tuple() for value in exact]
    digits = max(len(each.digits) for each in told)
    exponents = [int(each.exponent) - digits + len(each.digits) for each in told]
    own = [int(value.scaleb(-e)) for value, e in zip(exact, exponents, strict=True)]
    least = min(int(each.exponent) for each in told)
    one = [int(value.scaleb(-least)) for value in exact]
    if _width(one) <= _width(own):
        return ["f", least, *_planed(one, planes)]
    return ["d", *_planed(own, planes), pack(exponents, planes)]


_PACKERS: Sequence[Callable[[Sequence[Any], Planes], Form | None]] = (
    _pack_few,
    _pack_some,
    _pack_objects,
    _pack_lists,
    _pack_texts,
    _pack_whole,
    _pack_floats,
)


def _all(values: Sequence[Any], kind: type) -> bool:
    return {type(value) for value in values} == {kind}


def _is_decimal(value: Any) -> bool:
    """True of a number that the float of its decimal digits equals."""
    return isfinite(value) if type(value) is float else type(value) is int and abs(value) < 1 << 53


def _planed(values: Sequence[int], planes: Planes) -> tuple[int, int]:
    """The least value, and in how many bytes the distance of each from it was written."""
    low, width = min(values), max(1, _width(values))
    for place in reversed(range(width)):
        data = bytes((value - low) >> 8 * place & 255 for value in values)
        planes.write(HIGH if place or width == 1 else LOW, data)
    return low, width


def _width(values: Sequence[int]) -> int:
    return ((max(values) - min(values)).bit_length() + 7) // 8


def _whole(low: int, width: int, count: int, planes: Planes) -> list[int]:
    if type(low) is not int or not 1 <= width <= WIDEST:
        raise ValueError(f"numbers of {width!r:.20} bytes")
    read = [0] * count
    for place in reversed(range(width)):
        data = planes.read(HIGH if place or width == 1 else LOW, count)
        read = [value << 8 | byte for value, byte in zip(read, data, strict=True)]
    return [low + value for value in read]


def _distinct(form: Form, count: int, planes: Planes) -> list[Any]:
    values = form[1:]
    if len(values) == 1:
        planes.take(count * len(json.dumps(values)))
        return values * count
    sizes = [len(json.dumps(value)) for value in values]
    read: list[Any] = []
    for place in planes.read(HIGH, count):
        planes.take(sizes[place])
        read.append(values[place])
    return read


def _objects(form: Form, count: int, planes: Planes) -> list[Any]:
    fields = {name: unpack(each, count, planes) for name, each in form[1].items()}
    return [dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True)]


def _lists(form: Form, count: int, planes: Planes) -> list[Any]:
    lengths = unpack(form[1], count, planes)
    items = iter(unpack(form[2], sum(map(_length, lengths)), planes))
    return [[next(items) for _ in range(length)] for length in lengths]


def _texts(form: Form, count: int, planes: Planes) -> list[Any]:
    return [planes.read(TEXTS, _length(n)).decode() for n in unpack(form[1], count, planes)]


def _length(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"a length of {value!r:.20}")
    return value


def _integers(form: Form, count: int, planes: Planes) -> list[Any]:
    return _whole(form[1], form[2], count, planes)


def _floats(form: Form, count: int, planes: Planes) -> list[Any]:
    return [_float(value, form[1]) for value in _whole(form[2], form[3], count, planes)]


def _own_floats(form: Form, count: int, planes: Planes) -> list[Any]:
    read = _whole(form[1], form[2], count, planes)
    return list(map(_float, read, unpack(form[3], count, planes)))


def _float(digits: int, exponent: Any) -> float:
    if type(exponent) is not int:
        raise TypeError("an exponent that is no whole number")
    return float(f"{digits}e{exponent}")


def _some(form: Form, count: int, planes: Planes) -> list[Any]:
    there = unpack(form[1], count, planes)
    values = iter(unpack(form[2], there.count(True), planes))
    return [next(values) if known is True else None for known in there]


def _as_they_are(form: Form, _count: int, _planes: Planes) -> list[Any]:
    return form[1:]


_READERS: dict[Any, Callable[[Form, int, Planes], list[Any]]] = {
    "t": _distinct,
    "o": _objects,
    "l": _lists,
    "s": _texts,
    "i": _integers,
    "f": _floats,
    "d": _own_floats,
    "n": _some,
    "j": _as_they_are,
}
