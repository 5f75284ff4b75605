"""Races on the machines of a Ray cluster: one actor a machine, one race on each at a time.

`actor` is what runs on a machine, `driver` the one process that imports ray and talks to the
actors, `host` the page's side, which knows the driver as a `Link` alone, `choice` which machine a
race goes to.
"""
