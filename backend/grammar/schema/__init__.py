"""JSON Schemas: their parts, those that never end, what the engine refuses, and a judge."""
