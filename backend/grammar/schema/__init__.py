"""JSON Schemas: the parts of one, those that no text can end, what the engine refuses, and a judge."""
