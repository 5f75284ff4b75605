"""Turns a column into code for production, one module a library, or says what the library lacks;
and a recorded race into a table (`tables`), a `trace`, or a picture of the result (`card`) or of
what passes cost (`curves`).
"""
