"""The side that makes experience: environments, the player that steps them, the worker that plays leased shards.

It never learns and never reads the experience stream.
"""
