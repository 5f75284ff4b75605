"""Declares strategies: `ours` and `libraries` are listed in `registry` beside those of other
packages; `column` is a strategy with its `settings` and, if it wants, a model of its own.
"""
