"""Columns that are a library's own decoding: what people deploy, raced as it is.

`library` is the seam and `lane` runs a column of one; `transformers`, `openvino_genai` and
`llamacpp` are one library each, and `server` is whatever an OpenAI-compatible server runs. A
library knows nothing of drafters, caches or masks here. Its arguments are plain values, of which
backend/export makes the code to take away.
"""
