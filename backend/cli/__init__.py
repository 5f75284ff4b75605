"""Runs the command line: one module a command, assembled in `main`.

It prints what the other rooms compute. Nothing but `backend/__main__.py` imports it.

May import: serving, web, cluster, export, bench, racing, records, results, strategies, training,
kvcache, grammar, costs, engines, models, events, types, limits, errors.
"""
