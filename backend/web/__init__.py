"""Serves the page without gradio: reads forms, queues visitors, prepares what is shown.

Nothing that comes from a browser is trusted here.
"""
