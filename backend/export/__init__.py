"""A column as code for production (`production`, one module a library), a recorded race as a table
(`tables`) or one `picture`, and what passes cost (`cost_curve`).
"""
