"""States what forward passes cost: T(k) as a value (`pass_costs`), measured (`measure`), corrected
by what passes then take (`learnt`), and kept (`store`).

Drafters read a curve, results one that an event brought.
"""
