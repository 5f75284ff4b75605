"""Runs models. Whoever asks about an engine asks `registry`; only an engine's own module names it,
and its libraries load when one of its models is opened.
"""
