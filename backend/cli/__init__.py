"""Runs the command line: one module a command, assembled in `main`.

It prints what the other rooms compute. Nothing but `backend/__main__.py` imports it.
"""
