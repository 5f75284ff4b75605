"""Runs models: the seam (`base`), one declaration an engine, and the registry of them.

Whoever asks about an engine asks `registry`; only an engine's own module names it. An engine's
libraries load when one of its models is opened.
"""
