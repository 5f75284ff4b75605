"""Serves the page without gradio: reads forms, queues visitors, prepares what is shown.

Nothing that comes from a browser is trusted here.

May import: export, bench, racing, records, results, strategies, servers, programs, kvcache,
grammar, engines, models, text, events, types, limits, errors.
"""
