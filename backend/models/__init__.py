"""Finds models' files: the built-in model, folders, the Hub; keeps what takes long to make.

`files` says what a model's name means; `prepared` makes a folder once and verifies it by hash.
"""
