"""The command line: one module a command, assembled in `main`.

It prints what the other rooms compute and may import all of them but the page. Nothing imports it.
"""
