"""Runs races: loads each model once, makes a lane of each column, and gives the lanes turns.

`race` and `commands` are what a host is asked for, `column_run` is the local lane, `schedule` the
interleaver, `ledger` what others did on the machine meanwhile, `hosts` the places where races run.
"""
