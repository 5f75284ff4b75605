"""Binds texts to grammars: sources, their compilation, vetting in a sandbox, and the constraint.

`grammars` is the way in. May import `decoding` (the constraint's seam, proposals), `text`, `types`
and `errors`; not programs, caches, strategies or races.
"""
