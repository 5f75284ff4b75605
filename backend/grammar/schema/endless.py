"""JSON Schemas that only an endless text could match, as by a required `$ref` to themselves."""

from __future__ import annotations

from typing import Any, cast

from backend.grammar.fixpoints import greatest, least
from backend.grammar.schema.nodes import as_dict, as_list, reached, resolve

#: A schema says something else of objects, of arrays and of all other values.
_SORTS = ("object", "array", "value")

#: (the schema's id, what holds of it): it matches a value of that sort that ends, or any at all.
_Fact = tuple[int, str]
_Clause = tuple[_Fact, list[_Fact]]


def endless(schema: Any) -> str:
    """What is wrong with a schema if some part of it can be matched by no finite text, with the
    first such part as `#/properties/next`; "" if there is none. Parts that contradict themselves
    are left to llguidance. Keywords that do not concern structure count as met.
    """
    reader = _Reader(schema)
    nodes = reached(schema)
    clauses = [clause for node, _ in nodes for clause in reader.clauses(node)]
    possible, ends = greatest(clauses), least(clauses)
    for node, path in nodes:
        fact = (id(node), "any")
        if fact in possible and fact not in ends:
            where = "it" if path == "#" else f"its part {path!r}"
            return f"no finite JSON can meet {where}: require less of it"
    return ""


class _Reader:
    """Reads one document. `id` tells its objects apart; they live as long as it does."""

    def __init__(self, schema: Any) -> None:
        self._root = schema

    def clauses(self, node: Any) -> list[_Clause]:
        """When a value that ends can match the schema, for each sort of values."""
        me = id(node)
        found: list[_Clause] = [((me, "any"), [(me, sort)]) for sort in _SORTS]
        if not isinstance(node, dict):
            return found + [((me, sort), []) for sort in _SORTS if node is not False]
        node = cast(dict[str, Any], node)
        if "const" in node or "enum" in node:
            values = [node["const"]] if "const" in node else as_list(node["enum"])
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
        names = as_list(types) if isinstance(types, list) else [types]
        return {name if name in ("object", "array") else "value" for name in names}

    def _combined(self, node: dict[str, Any], sort: str, found: list[_Clause]) -> list[_Fact]:
        needs: list[_Fact] = [(id(inner), sort) for inner in as_list(node.get("allOf"))]
        if "$ref" in node and (target := resolve(self._root, node["$ref"])) is not None:
            needs.append((id(target), sort))
        for key in ("anyOf", "oneOf"):
            if branches := as_list(node.get(key)):
                needs.append((id(node), f"{sort} {key}"))
                found += [(needs[-1], [(id(branch), sort)]) for branch in branches]
        return needs

    def _of_object(self, node: dict[str, Any], found: list[_Clause]) -> list[_Fact]:
        properties = as_dict(node.get("properties"))
        others = node.get("additionalProperties", True)
        patterns = as_dict(node.get("patternProperties"))
        required = [name for name in as_list(node.get("required")) if isinstance(name, str)]
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
        first = as_list(items) if isinstance(items, list) else as_list(node.get("prefixItems"))
        least_items = _count(node.get("minItems"))
        needs: list[_Fact] = [(id(inner), "any") for inner in first[:least_items]]
        if least_items > len(first) and isinstance(items, dict):
            needs.append((id(cast(Any, items)), "any"))
        return needs


def _sort(value: Any) -> str:
    if isinstance(value, dict):
        return "object"
    return "array" if isinstance(value, list) else "value"


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
