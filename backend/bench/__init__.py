"""Experiments that measure columns, the equality matrix, and the search for settings to use.

Each experiment declares itself in its own module and is listed in `registry`. May import every room
below the command line but the page's.
"""
