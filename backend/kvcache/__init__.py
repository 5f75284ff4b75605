"""Reuses KV caches: of a visitor's earlier answers, and of snapshots on disk.

`column_caches` is the way in. May import `decoding` (the clock), `engines` (the base alone),
`models` (the cache folder), `types` and `errors`.
"""
