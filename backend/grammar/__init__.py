"""Binds texts to grammars: sources, compiling, checking in a child process, and the constraint.

`grammars` is the way in. Knows no program, no cache, no strategy and no race.
"""
