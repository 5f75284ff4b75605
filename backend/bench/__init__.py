"""Measures many prompts: the benchmark of page, command line and cluster, the search for settings
to use, and the equality matrix.

A benchmark is a plan (`plan`), a row for each of its jobs (`rows`), what makes them (`runner`, or a
Ray cluster), and medians over rows (`summary`).
"""
