"""The OpenVINO engine: its declaration, the conversion of models, and sessions that run them.

May import what `engines` may; nothing but `declaration` is imported before a model is asked for.
"""
