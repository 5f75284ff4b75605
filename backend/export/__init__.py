"""A column as code for production (`production`, one module a library), and a race as tables or one
`picture`.
"""
