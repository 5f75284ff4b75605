"""Runs races: each column is a lane with a clock of its own, and the lanes take turns.

`race` makes the lanes, `column` runs one, `schedule` gives turns; `models` and `sessions` are what
stays in memory between races, `reading` a prompt that columns share, `ledger` what others did on
the machine meanwhile, `hosts` the places where races run.
"""
