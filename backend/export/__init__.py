"""A column as code for production (`production`, by `templates`), and a race as `tables` or one
`picture`.
"""
