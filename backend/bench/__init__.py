"""Measures columns: experiments, the equality matrix, and the search for settings to use.

Each experiment declares itself in its own module and is listed in `registry`.
"""
