"""Binds texts to grammars: their text, compiling, a check in a child process, and the constraint.

`GrammarCompiler` is the way in. Knows no program, no cache, no strategy and no race.
"""
