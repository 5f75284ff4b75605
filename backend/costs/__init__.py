"""States what forward passes cost: T(k) as a value (`pass_costs`), measured and kept (`measure`).

Drafters and results read the value alone.

May import: engines, models, types, errors.
"""
