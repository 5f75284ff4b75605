"""The page: its layout, one module for each tab or section, and how it is served.

This is the only package that imports gradio, and only `app.py` imports it. It lays out components
and passes on their values. Checks, decisions and sentences are in `backend/web/`.
"""
