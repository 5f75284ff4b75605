"""Decodes: the loop, the clock, sampling, and the seams that strategies plug into.

`loop` is the one loop. `drafter`, `constraint` and `verification` are its seams, each a class that
is plain decoding by itself.
"""
