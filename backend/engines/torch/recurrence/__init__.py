"""Layers that keep a state of the text instead of its rows, computed by passes of our own.

transformers' layers take up a state in passes over one row alone: in wider ones they begin anew, so
a draft would be verified against another text. These passes are one computation at any width, and
keep what the state behind any of their rows is made of.
"""
