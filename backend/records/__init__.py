"""Keeps races: all that one was and did as one value, as a file and as a link.

`record` is the value, `place` where and with what it was made, `document` its JSON form, checked
by `record.schema.json`; `file` is that in bytes, `link` the same packed for an address, and
`timeline` plays it by the columns' own clocks. Whatever is read is untrusted, and runs nothing.
"""
