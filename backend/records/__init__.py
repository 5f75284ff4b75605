"""Keeps races: all that one was and did as one value (`record`), where and with what it was made
(`place`), and as a JSON file (`file`). Whatever is read is untrusted, and runs nothing.
"""
