"""States: how experiments, shards, workers and trainers really are, and why.

Facts are read in `read.py`; everything else is pure: facts in, a `Judgement` out. It never changes anything.
"""
