"""`python -m backend.records` writes the JSON Schema of records beside their code."""

from backend.records.document import SCHEMA, schema

if __name__ == "__main__":
    SCHEMA.write_text(schema(), encoding="utf-8")
