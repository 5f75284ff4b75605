"""What forward passes cost: T(k) as a value (`pass_costs`), and how it is measured and kept.

May import `engines`, `models` for the cache folder, `types` and `errors`. Drafters and results read
the value alone.
"""
