"""Says what a race's events amount to. `scoreboard` folds and compares columns, `result` is what a
race came to, as one value, with `intervals`; `figures` is the one table of what is reported,
`sentences` puts it into words, and `drawing` is what the page draws.
"""
