"""The schemas inside a JSON Schema that its grammar is made of, and the JSON pointers to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast
from urllib.parse import unquote


def reached(root: Any) -> list[tuple[Any, str]]:
    """The schemas, true and false but once, that are reached from `root`, and their pointers.

    A pointer begins with `#` (RFC 6901); what a `$ref` leads to is called by it.
    """
    found = [(root, "#")]
    seen = {id(root)}
    for node, pointer in found:
        for inner, where in inside(root, node, pointer):
            if id(inner) not in seen:
                seen.add(id(inner))
                found.append((inner, where))
    return found


def inside(root: Any, node: Any, pointer: str) -> Iterator[tuple[Any, str]]:
    """The schemas that `node`, at `pointer` of the document `root`, has or refers to."""
    if not isinstance(node, dict):
        return
    node = cast(dict[str, Any], node)
    if "$ref" in node and (target := resolve(root, node["$ref"])) is not None:
        yield target, str(node["$ref"])
    for key in ("properties", "patternProperties"):
        for name, inner in as_dict(node.get(key)).items():
            yield inner, f"{pointer}/{key}/{name.replace('~', '~0').replace('/', '~1')}"
    for key in ("anyOf", "oneOf", "allOf", "prefixItems", "items"):
        for n, inner in enumerate(as_list(node.get(key))):
            yield inner, f"{pointer}/{key}/{n}"
    for key in ("items", "additionalProperties", "additionalItems"):
        if isinstance(node.get(key), dict | bool):
            yield node[key], f"{pointer}/{key}"


def resolve(root: Any, ref: Any) -> Any:
    """What a reference points to in the document `root`; None if that is unknown."""
    if not isinstance(ref, str) or "#" not in ref:
        return None
    document, _, pointer = ref.partition("#")
    if document and document != as_dict(root).get("$id"):
        return None
    if pointer and not pointer.startswith("/"):
        return _anchored(root, pointer)
    at = root
    for word in pointer.split("/")[1:]:
        key = unquote(word).replace("~1", "/").replace("~0", "~")
        if isinstance(at, list) and key.isascii() and key.isdecimal():
            items = cast(list[Any], at)
            at = items[int(key)] if len(key) < 6 and int(key) < len(items) else None
        else:
            at = as_dict(at).get(key)
    return at


def _anchored(root: Any, name: str) -> Any:
    """What has this "$anchor" anywhere in the document; None if nothing has."""
    left = [root]
    while left:
        node = left.pop()
        if as_dict(node).get("$anchor") == name:
            return node
        left += [*as_dict(node).values(), *as_list(node)]
    return None


def as_dict(value: Any) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return cast(dict[str, Any], value) if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """The value if it is an array, else an empty one."""
    return cast(list[Any], value) if isinstance(value, list) else []
