"""Turns a column into code for production, one module a library, or says what the library lacks.

May import: results, strategies, grammar, decoding, models, types, errors.
"""
