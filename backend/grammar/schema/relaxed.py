"""A JSON Schema without what the grammar engine cannot hold, for texts that are judged afterwards.

Whatever the full schema takes, the relaxed one takes: a keyword is left out only where more values
pass without it, and what is below a `not` or an `if` goes with it, never alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from backend.grammar.schema.nodes import as_dict, as_list, resolve
from backend.grammar.schema.validity import Judgement, asserted, judge, pointer

#: Keywords that llguidance refuses. Without them a schema takes more, or as much.
_LEFT_OUT = (
    "uniqueItems",
    "contains",
    "minContains",
    "maxContains",
    "if",
    "then",
    "else",
    "not",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
    "propertyNames",
    "unevaluatedProperties",
    "unevaluatedItems",
)
#: Of these, those that say something only beside another one, or that ask for nothing.
_UNNAMED = ("minContains", "maxContains", "then", "else", ("uniqueItems", False))

#: Where schemas stand from which more may pass: the more do, the more pass the whole.
_ONE = ("items", "additionalProperties", "additionalItems")
_LISTED = ("anyOf", "allOf", "prefixItems", "items")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")

Node = dict[str, Any]
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A schema, and JSON pointers to the keywords that it lacks or, `oneOf`, has as `anyOf`."""

    schema: Any
    left: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def engine_takes(schema: str) -> bool:
    """Tell whether llguidance reads a small schema. Native code: for the sandbox's child."""
    from llguidance import LLMatcher

    grammar = {"grammars": [{"json_schema": json.loads(schema)}]}
    return not LLMatcher.validate_grammar(json.dumps(grammar))


def relaxed(schema: Any, takes: Callable[[str], bool] = engine_takes) -> Relaxed:
    """Leave out what the engine refuses; `takes` says so of formats and patterns.

    Returns a copy. Raises RecursionError for one that is nested too deeply.
    """
    relaxing = _Relaxing(copy.deepcopy(schema), takes)
    return Relaxed(relaxing.root, tuple(dict.fromkeys(relaxing.run())))


def judge_relaxed(schema: str, text: str) -> Judgement:
    """Judge under the whole schema a text that was decoded under the relaxed one."""
    parts = relaxed(json.loads(schema))
    found = judge(schema, text)
    later = tuple(_called(json.loads(schema), each) for each in parts.left)
    broken = found.forbidden and judge(json.dumps(parts.schema), text).forbidden
    return replace(found, later=later, forbidden=broken)


def _called(schema: Any, left: str) -> str:
    """A pointer to what was left out, and whether anybody checks it."""
    known = not left.endswith("/format") or asserted(resolve(schema, f"#{left}"))
    return left if known else f"{left} (an annotation)"


class _Relaxing:
    """Changes `root` in place, every part that is reached from it once."""

    def __init__(self, root: Any, takes: Callable[[str], bool]) -> None:
        self.root = root
        self._takes = takes

    def run(self) -> Iterator[str]:
        """Pointers to what was left out."""
        waiting: list[tuple[Any, Path]] = [(self.root, ())]
        seen: set[int] = set()
        while waiting:
            node, path = waiting.pop()
            if not isinstance(node, dict) or id(node) in seen:
                continue
            seen.add(id(node))
            options = as_list(node.get("oneOf"))
            for word in self._leave_out(node):
                yield pointer((*path, word))
            waiting += self._inside(node, path)
            # Last, so that they are met by the path that they had.
            waiting += [(each, (*path, "oneOf", number)) for number, each in enumerate(options)]

    def _leave_out(self, node: Node) -> Iterator[str]:
        for word in _LEFT_OUT:
            if word in node and (word, node.pop(word)) not in _UNNAMED and word not in _UNNAMED:
                yield word
        yield from self._words(node)
        if isinstance(node.get("oneOf"), list):
            # Which may stand beside an `anyOf` of its own.
            node["allOf"] = [*as_list(node.get("allOf")), {"anyOf": node.pop("oneOf")}]
            yield "oneOf"

    def _words(self, node: Node) -> Iterator[str]:
        """Leave out formats that the engine does not know and patterns that it cannot read."""
        may_be_text = "string" in as_list(node.get("type", ["string"])) or node["type"] == "string"
        for word in ("format", "pattern"):
            value = node.get(word)
            if isinstance(value, str) and may_be_text and not self._held(word, value):
                del node[word]
                yield word
        patterns = node.get("patternProperties")
        if isinstance(patterns, dict) and not all(self._held("pattern", p) for p in patterns):
            # The names that it allowed must not become additional ones.
            del node["patternProperties"]
            yield "patternProperties"
            if "additionalProperties" in node:
                del node["additionalProperties"]
                yield "additionalProperties"

    def _held(self, word: str, value: str) -> bool:
        return self._takes(json.dumps({"type": "string", word: value}))

    def _inside(self, node: Node, path: Path) -> Iterator[tuple[Any, Path]]:
        for word in _ONE:
            yield node.get(word), (*path, word)
        for word in _LISTED:
            for number, inner in enumerate(as_list(node.get(word))):
                yield inner, (*path, word, number)
        for word in _NAMED:
            for name, inner in as_dict(node.get(word)).items():
                yield inner, (*path, word, name)
        if isinstance(ref := node.get("$ref"), str):
            target = resolve(self.root, ref)
            yield target, tuple(ref.partition("#")[2].split("/")[1:])
