"""The page: its layout, what each of its parts does, and how it is served.

This is the only package that imports gradio, and only `app.py` imports it.
"""
