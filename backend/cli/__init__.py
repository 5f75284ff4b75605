"""The command line: one module for each command, assembled in `main`.

It prints what the other rooms compute. Only `backend/__main__.py` imports it.
"""
