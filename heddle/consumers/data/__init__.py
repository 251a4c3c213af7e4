"""Recorded experience: from a tap to folders of Parquet files, and from those to the train batches of an offline run.

`joiner.py` makes episodes of segments, `store.py` keeps them, `recorder.py` is the loop; `source.py` reads them again,
and `minari.py` trades with Minari. Nothing in here talks to a trainer or changes what is in the broker.
"""
