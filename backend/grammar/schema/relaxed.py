"""A JSON Schema without the parts that the grammar engine cannot handle. Texts are checked
afterwards.

The relaxed schema accepts everything that the full one accepts. A keyword is left out only if more
values pass without it. What is below a `not` or an `if` is left out together with it, never alone.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from backend.grammar.schema.nodes import as_list, inside, resolve
from backend.grammar.schema.refusals import KEYWORDS, said_against
from backend.grammar.schema.validity import Judgement, asserted, judge

#: Without these keywords that llguidance refuses, a schema takes more, or as much.
_LEFT_OUT = tuple(word for word in KEYWORDS if not word.startswith("$"))
#: Of these, those that say something only beside another one, or that ask for nothing.
_UNNAMED = ("minContains", "maxContains", "then", "else", ("uniqueItems", False))

Node = dict[str, Any]
#: Whether the engine can hold a small schema, as text.
Takes = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Relaxed:
    """A schema, and JSON pointers to the keywords that it lacks or, `oneOf`, has as `anyOf`."""

    schema: Any
    left: tuple[str, ...] = ()


@lru_cache(maxsize=256)
def engine_takes(schema: str) -> bool:
    """Whether llguidance accepts a small schema. Native code: call it in the sandbox's
    child only.
    """
    return not said_against(json.loads(schema))


def relaxed(schema: Any, takes: Takes = engine_takes) -> Relaxed:
    """Leave out what the engine refuses; `takes` says so of formats and patterns.

    Returns a copy. Raises RecursionError for one that is nested too deeply.
    """
    root = copy.deepcopy(schema)
    left: list[str] = []
    waiting, seen = [(root, "#")], {id(root)}
    for node, where in waiting:
        if not isinstance(node, dict):
            continue
        left += [f"{where.partition('#')[2]}/{word}" for word in _leave_out(node, takes)]
        # By the places that they have in the schema as it was written.
        found = [each for each in inside(root, node, where) if id(each[0]) not in seen]
        waiting += found
        seen.update(id(inner) for inner, _ in found)
        if isinstance(node.get("oneOf"), list):
            # There may be an `anyOf` beside it.
            node["allOf"] = [*as_list(node.get("allOf")), {"anyOf": node.pop("oneOf")}]
    return Relaxed(root, tuple(dict.fromkeys(left)))


def judge_relaxed(schema: str, text: str) -> Judgement:
    """Check, with the full schema, a text that was decoded with the relaxed one."""
    parts = relaxed(json.loads(schema))
    found = judge(schema, text)
    later = tuple(_called(json.loads(schema), each) for each in parts.left)
    broken = found.forbidden and judge(json.dumps(parts.schema), text).forbidden
    return replace(found, later=later, forbidden=broken)


def _called(schema: Any, left: str) -> str:
    """A pointer to what was left out, and whether anybody checks it."""
    known = not left.endswith("/format") or asserted(resolve(schema, f"#{left}"))
    return left if known else f"{left} (an annotation)"


def _leave_out(node: Node, takes: Takes) -> Iterator[str]:
    """Take keywords from a node, and name them; `oneOf` is named alone."""
    for word in _LEFT_OUT:
        if word in node and (word, node.pop(word)) not in _UNNAMED and word not in _UNNAMED:
            yield word
    types = node.get("type", "string")
    for word in ("format", "pattern"):
        value = node.get(word)
        may_be_text = types == "string" or "string" in as_list(types)
        if isinstance(value, str) and may_be_text and not _held(word, value, takes):
            del node[word]
            yield word
    patterns = node.get("patternProperties")
    if isinstance(patterns, dict) and not all(_held("pattern", p, takes) for p in patterns):
        # The names that it allowed must not become additional ones.
        for word in ("patternProperties", "additionalProperties"):
            if node.pop(word, None) is not None:
                yield word
    if isinstance(node.get("oneOf"), list):
        yield "oneOf"


def _held(word: str, value: str, takes: Takes) -> bool:
    return takes(json.dumps({"type": "string", word: value}))
