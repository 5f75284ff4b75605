"""What runs models: the seam (`base`), one declaration per engine, the registry of them, and the
engines themselves, whose libraries load only when a model is opened.

Whoever asks about an engine asks `registry`; only an engine's own module names it. May import
`models`, `text`, `plugins`, `types` and `errors`.
"""
