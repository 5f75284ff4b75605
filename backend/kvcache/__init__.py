"""Reuses KV caches: of a visitor's earlier answers, and of snapshots on disk.

`column_caches` is the way in.
"""
