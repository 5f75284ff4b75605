"""The torch engine: its declaration, and sessions that run transformers models.

May import what `engines` may; nothing but `declaration` is imported before a model is asked for.
"""
