"""Measures columns: the benchmark, the equality matrix, and the search for
settings to use.

A benchmark is a plan (`plan`), rows of what was measured (`rows`), a runner that makes those that
are left (`runner`), and tables that are folds over rows (`summary`). The page's, the command line's
and a cluster's benchmark are this one.
"""
