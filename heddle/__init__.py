"""Heddle: reinforcement learning rollouts as a fleet, through Redis Streams."""
