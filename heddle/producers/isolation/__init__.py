"""Environments in a process of their own: one child for each shard, and stand-ins that look like environments.

Nothing in here knows a broker, and nothing that crosses the border to a child is pickled.
"""
