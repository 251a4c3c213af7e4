"""Be the trainer: take the seat, read fenced batches, publish weights. Counting, acking and saving are done for you.

This one improves a linear policy for CartPole by the cross-entropy of its better episodes; any rule may stand here.
A fleet must run in this folder: `heddle up`.
"""
