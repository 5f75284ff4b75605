"""Examines untrusted grammars in a child process, before this one's grammar engine sees them.

`parent` is the way in.
"""
