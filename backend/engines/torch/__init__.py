"""The torch engine: its declaration, and sessions that run transformers models."""
