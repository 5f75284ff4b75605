"""JSON Schemas in the style of real ones: workflows, OpenAPI, FHIR, Kubernetes, tool calls."""

from typing import Any

Schema = dict[str, Any]


def _record(properties: Schema, *required: str, **more: Any) -> Schema:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


_TEXT = {"type": "string", "maxLength": 12}
_COUNT = {"type": "integer", "minimum": 0, "maximum": 99}

#: Those that the grammar engine holds as they are.
HELD: dict[str, Schema] = {
    "fhir patient": _record(
        {
            "resourceType": {"const": "Patient"},
            "active": {"type": "boolean"},
            "birthDate": {"type": "string", "format": "date"},
            "gender": {"enum": ["female", "male", "other", "unknown"]},
            "name": {"type": "array", "items": _record({"family": _TEXT}, "family"), "maxItems": 2},
        },
        "resourceType",
        "birthDate",
    ),
    "tree": _record(
        {"value": _COUNT, "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}}, "value", "next"
    ),
    "pattern anywhere": {"type": "string", "pattern": "[0-9]"},
}

#: Those that it refuses, and pointers to what is left out once they are relaxed.
REFUSED: dict[str, tuple[Schema, set[str]]] = {
    "workflow, unique needs": (
        _record({"needs": {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True}}),
        {"/properties/needs/uniqueItems"},
    ),
    "openapi, formats": (
        _record(
            {
                "password": {"type": "string", "format": "password", "maxLength": 5},
                "pointer": {"type": "string", "format": "json-pointer", "maxLength": 3},
            },
            "password",
            "pointer",
        ),
        {"/properties/password/format (an annotation)", "/properties/pointer/format"},
    ),
    "fhir, value": (
        _record(
            {"kind": {"enum": ["code", "count"]}, "value": {"type": ["string", "integer"]}},
            "kind",
            "value",
            **{
                "if": {"properties": {"kind": {"const": "count"}}},
                "then": {"properties": {"value": {"type": "integer"}}},
                "else": {"properties": {"value": {"type": "string"}}},
            },
        ),
        {"/if"},
    ),
    "fhir, coding": (
        {
            "type": "array",
            "items": {"enum": ["official", "usual", "old"]},
            "contains": {"const": "usual"},
            "maxItems": 3,
        },
        {"/contains"},
    ),
    "kubernetes, labels": (
        {
            "type": "object",
            "propertyNames": {"pattern": "^[a-z]{1,3}$"},
            "additionalProperties": _TEXT,
        },
        {"/propertyNames"},
    ),
    "kubernetes, no default": (
        {"type": "string", "pattern": "^(?!kube-)[a-z-]{1,9}$"},
        {"/pattern"},
    ),
    "tool call, unevaluated": (
        {
            "type": "object",
            "allOf": [{"properties": {"name": {"enum": ["f", "g"]}}, "required": ["name"]}],
            "unevaluatedProperties": False,
        },
        {"/unevaluatedProperties"},
    ),
    "nested in a branch": (
        {
            "type": "array",
            "items": {"oneOf": [{"type": "integer", "not": {"const": 3}}, {"enum": [1, "x"]}]},
            "maxItems": 2,
        },
        {"/items/oneOf", "/items/oneOf/0/not"},
    ),
}
