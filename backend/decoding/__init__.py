"""Decodes: the loop, the clock, sampling, and the seams that strategies plug into.

`loop` is the one loop. `drafter` and `constraint` hold the protocols and their null objects,
`verification` the two rules of what is accepted, `lane` the protocol of what a race gives turns to.
"""
