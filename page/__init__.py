"""The page: its layout, one module a tab, and how it is served.

The only package that imports gradio. It may import any room of `backend/`, and nobody imports it
but `app.py`. It lays out components and passes on what they hold: checks, decisions and sentences
are those of `backend/web/`.
"""
