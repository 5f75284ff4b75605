"""Binds texts to grammars: sources, their compilation, vetting in a sandbox, and the constraint.

`grammars` is the way in. Knows no program, no cache, no strategy and no race.
"""
