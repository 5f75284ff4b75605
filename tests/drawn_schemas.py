"""JSON Schemas as people write them, drawn at random, and values that satisfy them."""

from collections.abc import Callable, Mapping
from math import ceil, floor
from random import Random
from typing import Any

from hypothesis import strategies as st

Schema = dict[str, Any]

#: Patterns and texts that match them.
PATTERNS = {
    "^[a-z]{2,5}$": ("ab", "hello"),
    "^[A-Z][0-9]+(-[0-9]+)?$": ("A1", "Q42-7"),
    "^(red|green|blue)$": ("red", "blue"),
    "^[^@]+@x$": ("a b@x", '"@x', "\u00e9\\@x"),
    "[0-9]": ("7", "a7b", 'say "9"'),
    "^id_": ("id_", "id_\u00e9 x"),
}
#: Formats and texts of them.
FORMATS = {
    "date": ("2024-02-29", "1999-12-31"),
    "date-time": ("2024-02-29T23:59:59Z", "1999-12-31T00:00:00.5+05:30"),
    "uuid": ("123e4567-e89b-12d3-a456-426614174000",),
    "email": ("ada@example.org", "a.b+c@d-e.fr"),
    "ipv4": ("0.0.0.0", "255.10.99.1"),  # noqa: S104
    "ipv6": ("::1", "2001:db8::ff00:42:8329"),
}
SCALARS = ("a", "", 'q"\\', "\u00e9\U0001f600", "\n", 0, -7, 12.5, True, False, None)
CONSTANTS = (*SCALARS, [], [1, "x"], {}, {"k": [None]})
#: Names in the order that a schema lists them, and names that no schema lists.
NAMES = ("a", "name", "n\u00e9e", "x y", 'q"', "$id")
OTHERS = ("b", "other", "\u00fc", "nam", "names", "")


def _between(draw: st.DrawFn, low: str, high: str, numbers: st.SearchStrategy[Any]) -> Schema:
    """Either bound, both or none; never the wrong way round."""
    first, second = sorted((draw(numbers), draw(numbers)))
    kept = draw(st.integers(0, 3))
    return ({low: first} if kept & 1 else {}) | ({high: second} if kept & 2 else {})


_SMALL = st.integers(0, 4)
_WHOLE = st.integers(-120, 1500)
_DECIMAL = st.one_of(_WHOLE, st.sampled_from((-2.5, 0.25, 0.1, 3.75, 99.99)))
_PLAIN = st.sampled_from(({"type": "boolean"}, {"type": "null"}, {"type": ["integer", "null"]}))
_STRINGS = st.sampled_from(
    [{"pattern": pattern} for pattern in PATTERNS] + [{"format": name} for name in FORMATS]
).map(lambda schema: {"type": "string", **schema})
_LISTED = st.one_of(
    st.lists(st.sampled_from(CONSTANTS), min_size=1, max_size=4).map(lambda v: {"enum": v}),
    st.sampled_from(CONSTANTS).map(lambda v: {"const": v}),
)


@st.composite
def bounded(draw: st.DrawFn) -> Schema:
    kind = draw(st.sampled_from(("string", "integer", "number")))
    if kind == "string":
        return {"type": kind} | _between(draw, "minLength", "maxLength", _SMALL)
    numbers = _WHOLE if kind == "integer" else _DECIMAL
    return {"type": kind} | _between(draw, "minimum", "maximum", numbers)


LEAVES = st.one_of(_PLAIN, _STRINGS, _LISTED, bounded(), bounded(), bounded())


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    names = [name for name in NAMES if draw(st.booleans())]
    required = [name for name in names if draw(st.booleans())]
    schema: Schema = {"type": "object", "properties": {name: draw(inner) for name in names}}
    schema |= {"required": required} if required else {}
    more = draw(st.sampled_from((False, False, None, True, {"type": "integer"})))
    return schema | ({} if more is None else {"additionalProperties": more})


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    return {"type": "array", "items": draw(inner)} | _between(draw, "minItems", "maxItems", _SMALL)


def nests(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    choices = st.lists(inner, min_size=1, max_size=3).map(lambda options: {"anyOf": options})
    return st.one_of(objects(inner), objects(inner), arrays(inner), choices)


#: A definition that leads back to itself, each time through something that may be left out.
_CIRCULAR = st.sampled_from(
    (
        {
            "type": "object",
            "properties": {"next": {"$ref": "#/$defs/again"}},
            "additionalProperties": False,
        },
        {"type": "array", "items": {"$ref": "#/$defs/again"}, "maxItems": 2},
        {
            "type": "object",
            "properties": {
                "value": {"$ref": "#/$defs/leaf"},
                "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/again"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        },
    )
)
_INNER = st.one_of(
    LEAVES,
    LEAVES,
    LEAVES,
    st.sampled_from(("leaf", "again")).map(lambda n: {"$ref": f"#/$defs/{n}"}),
)
_TOPS = nests(st.one_of(_INNER, _INNER, nests(_INNER)))


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """Every schema has values: what is required never leads back to itself."""
    top = draw(_TOPS)
    return top | {"$defs": {"leaf": draw(LEAVES), "again": draw(_CIRCULAR)}}


def instance(schema: Any, defs: Mapping[str, Schema], rng: Random, depth: int = 0) -> Any:
    """A value that satisfies the schema, its properties in the schema's order."""

    def inside(inner: Any) -> Any:
        return instance(inner, defs, rng, depth + 1)

    if not isinstance(schema, dict):
        return rng.choice(CONSTANTS)
    if "$ref" in schema:
        return inside(defs[schema["$ref"].rpartition("/")[2]])
    if "anyOf" in schema:
        return inside(schema["anyOf"][0] if depth > 6 else rng.choice(schema["anyOf"]))
    if "type" not in schema:
        return rng.choice(schema["enum"] if "enum" in schema else [schema["const"]])
    kind = schema["type"] if isinstance(schema["type"], str) else rng.choice(schema["type"])
    made: dict[str, Callable[[], Any]] = {
        "object": lambda: _object(schema, inside, rng, shallow=depth < 6),
        "array": lambda: _array(schema, inside, rng, shallow=depth < 6),
        "string": lambda: _string(schema, rng),
        "boolean": lambda: rng.choice((True, False)),
        "null": lambda: None,
    }
    return made.get(kind, lambda: _number(kind, schema, rng))()


def _array(
    schema: Schema, inside: Callable[[Any], Any], rng: Random, *, shallow: bool
) -> list[Any]:
    low = schema.get("minItems", 0)
    high = schema.get("maxItems", low + 2) if shallow else low
    return [inside(schema["items"]) for _ in range(rng.randint(low, high))]


def _object(
    schema: Schema, inside: Callable[[Any], Any], rng: Random, *, shallow: bool
) -> dict[str, Any]:
    made = {
        name: inside(inner)
        for name, inner in schema["properties"].items()
        if name in schema.get("required", ()) or (shallow and rng.random() < 0.5)
    }
    more = schema.get("additionalProperties", True)
    if more is not False:
        for name in rng.sample(OTHERS, rng.randint(0, 2)):
            if name not in schema["properties"]:
                made[name] = inside(more)
    return made


def _string(schema: Schema, rng: Random) -> str:
    if "pattern" in schema:
        return rng.choice(PATTERNS[schema["pattern"]])
    if "format" in schema:
        return rng.choice(FORMATS[schema["format"]])
    low = schema.get("minLength", 0)
    length = rng.randint(low, schema.get("maxLength", low + 6))
    return "".join(rng.choices('ab "\\/\n\t\u00e9\u4e2d\U0001f600', k=length))


def _number(kind: str, schema: Schema, rng: Random) -> int | float:
    low = schema.get("minimum", schema.get("maximum", 0) - 50)
    high = schema.get("maximum", low + 50)
    # Between equal whole bounds llguidance writes a whole number only: 0, and not 0.0.
    if kind == "number" and low < high and rng.random() < 0.5:
        number = min(high, max(low, round(rng.uniform(low, high), rng.randint(1, 3))))
        for bound in (low, high):  # see test_a_bound_cut_short_needs_its_zeros
            number = bound if str(bound).startswith(str(number)) else number
        return number or 0.0  # llguidance has no -0.0 between bounds
    whole = range(ceil(low), floor(high) + 1)
    return rng.choice(whole) if whole else low
