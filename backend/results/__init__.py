"""Says what a race's events amount to: scores, comparisons, figures, sentences and charts.

Reads events and the columns that they belong to; knows no drafter, no page and no terminal.
`metrics` folds one column's events, `scoreboard` compares columns, `figures` is the one table of
what is reported, `sentences` puts it into words, `charts` into points; `steps` looks inside one.
"""
