"""Processes on this host: children, the supervisor of a pool's workers, the services of one terminal.

It never plays, trains or coordinates by itself; it starts what does, and ends it.
"""
