"""JSON Schemas that only an endless text could match, as by a required `$ref` to themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import unquote

from backend.grammar.checks.fixpoints import greatest, least

#: A schema says something else of objects, of arrays and of all other values.
_SORTS = ("object", "array", "value")

#: (the schema's id, what holds of it): it matches a value of that sort that ends, or any at all.
_Fact = tuple[int, str]
_Clause = tuple[_Fact, list[_Fact]]


def endless(schema: Any) -> str:
    """The first part of the schema, as `#/properties/next`, that no text that ends can match.

    Empty if there is none. A part that contradicts itself is llguidance's to find. Keywords that
    are not about structure are taken to be met.
    """
    reader = _Reader(schema)
    nodes = reader.nodes()
    clauses = [clause for node, _ in nodes for clause in reader.clauses(node)]
    possible, ends = greatest(clauses), least(clauses)
    for node, path in nodes:
        fact = (id(node), "any")
        if fact in possible and fact not in ends:
            return path
    return ""


def endless_reason(path: str) -> str:
    """What is wrong with the part of a schema that `endless` found."""
    where = "it" if path == "#" else f"its part {path!r}"
    return f"no JSON that meets {where} ever ends: require less of it"


class _Reader:
    """Reads one document; `id` tells its objects apart, which live as long as it does."""

    def __init__(self, schema: Any) -> None:
        self._root = schema

    def nodes(self) -> list[tuple[Any, str]]:
        """The schemas, true and false but once, that are reached from the root, and their paths."""
        found = [(self._root, "#")]
        seen = {id(self._root)}
        for node, path in found:
            for inner, where in self._inside(node):
                if id(inner) not in seen:
                    seen.add(id(inner))
                    found.append((inner, where if where.startswith("#") else f"{path}/{where}"))
        return found

    def _inside(self, node: Any) -> Iterator[tuple[Any, str]]:
        if not isinstance(node, dict):
            return
        node = cast(dict[str, Any], node)
        if "$ref" in node and (target := self._resolve(node["$ref"])) is not None:
            yield target, str(node["$ref"])
        for key in ("properties", "patternProperties"):
            for name, inner in _dict(node.get(key)).items():
                yield inner, f"{key}/{name}"
        for key in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
            for n, inner in enumerate(_list(node.get(key))):
                yield inner, f"{key}/{n}"
        for key in ("items", "additionalProperties", "additionalItems"):
            if isinstance(node.get(key), dict | bool):
                yield node[key], key

    def _resolve(self, ref: Any) -> Any:
        """What a reference into this document points to; None if that cannot be told."""
        if not isinstance(ref, str) or "#" not in ref:
            return None
        document, _, pointer = ref.partition("#")
        if document and document != _dict(self._root).get("$id"):
            return None
        at = self._root
        for word in pointer.split("/")[1:] if pointer.startswith("/") else ():
            key = unquote(word).replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and key.isascii() and key.isdecimal():
                items = cast(list[Any], at)
                at = items[int(key)] if len(key) < 6 and int(key) < len(items) else None
            else:
                at = _dict(at).get(key)
        return at if not pointer or pointer.startswith("/") else None

    def clauses(self, node: Any) -> list[_Clause]:
        """When a value that ends can match the schema, for each sort of values."""
        me = id(node)
        found: list[_Clause] = [((me, "any"), [(me, sort)]) for sort in _SORTS]
        if not isinstance(node, dict):
            return found + [((me, sort), []) for sort in _SORTS if node is not False]
        node = cast(dict[str, Any], node)
        if "const" in node or "enum" in node:
            values = [node["const"]] if "const" in node else _list(node["enum"])
            return found + [((me, _sort(value)), []) for value in values]
        for sort in self._allowed(node):
            needs = self._combined(node, sort, found)
            if sort == "object":
                needs += self._of_object(node, found)
            elif sort == "array":
                needs += self._of_array(node)
            found.append(((me, sort), needs))
        return found

    def _allowed(self, node: dict[str, Any]) -> set[str]:
        types = node.get("type")
        if types is None:
            return set(_SORTS)
        names = _list(types) if isinstance(types, list) else [types]
        return {name if name in ("object", "array") else "value" for name in names}

    def _combined(self, node: dict[str, Any], sort: str, found: list[_Clause]) -> list[_Fact]:
        needs: list[_Fact] = [(id(inner), sort) for inner in _list(node.get("allOf"))]
        if "$ref" in node and (target := self._resolve(node["$ref"])) is not None:
            needs.append((id(target), sort))
        for key in ("anyOf", "oneOf"):
            if branches := _list(node.get(key)):
                needs.append((id(node), f"{sort} {key}"))
                found += [(needs[-1], [(id(branch), sort)]) for branch in branches]
        return needs

    def _of_object(self, node: dict[str, Any], found: list[_Clause]) -> list[_Fact]:
        properties = _dict(node.get("properties"))
        others = node.get("additionalProperties", True)
        patterns = _dict(node.get("patternProperties"))
        required = [name for name in _list(node.get("required")) if isinstance(name, str)]
        needs: list[_Fact] = []
        for name in required:
            if name in properties:
                needs.append((id(properties[name]), "any"))
            elif not patterns:
                needs.append((id(others), "any"))
        if _count(node.get("minProperties")) > len(required):
            needs.append((id(node), "some property"))
            choices = [*properties.values(), *patterns.values(), others]
            found += [(needs[-1], [(id(choice), "any")]) for choice in choices]
        # Nothing is said of a schema that is absent: it is True.
        found += [((id(others), "any"), [])] if others is True else []
        return needs

    def _of_array(self, node: dict[str, Any]) -> list[_Fact]:
        items = node.get("items")
        first = _list(items) if isinstance(items, list) else _list(node.get("prefixItems"))
        least_items = _count(node.get("minItems"))
        needs: list[_Fact] = [(id(inner), "any") for inner in first[:least_items]]
        if least_items > len(first) and isinstance(items, dict):
            needs.append((id(cast(Any, items)), "any"))
        return needs


def _sort(value: Any) -> str:
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "value"


def _dict(value: Any) -> dict[str, Any]:
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast(list[Any], value) if isinstance(value, list) else []


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
