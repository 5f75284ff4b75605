"""Runs races: each column is a lane with a clock of its own, and the lanes take turns.

`race` makes the lanes, `column` runs one, `schedule` gives turns; `models` are loaded, `caches`
need not be computed again, `ledger` says what others did on the machine meanwhile, and `hosts` are
the places where races run.
"""
