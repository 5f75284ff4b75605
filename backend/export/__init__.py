"""Turns a column into code for production, one module a library, or says what the library lacks;
and a recorded race into a table (`csv_table`, `markdown`) or a `trace`.

May import: records, results, strategies, grammar, decoding, models, events, types, errors.
"""
