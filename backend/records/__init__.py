"""Keeps races: all that one was and did as one value (`record`), and as a JSON file (`file`).
Whatever is read is untrusted, and runs nothing.
"""
