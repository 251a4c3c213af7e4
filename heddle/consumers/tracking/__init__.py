"""Trackers: TensorBoard, W&B and MLflow, fed from the metrics stream by processes beside a run.

Nothing here is imported by a role that trains, plays or coordinates, and none of them waits for it.
"""
