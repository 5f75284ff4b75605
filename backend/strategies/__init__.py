"""Declares strategies: typed settings, what builds the drafter, production equivalents.

One module a strategy, listed in `registry` beside those of other packages. `column` is a strategy
with its settings and, if it wants, a model of its own.
"""
