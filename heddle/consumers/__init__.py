"""The reading side: the trainer and its learners, and taps.

It never knows how experience was made; it never imports producers or the coordinator.
"""
