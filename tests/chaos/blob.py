"""Batch bytes read with Arrow alone: the rows of a ledger's batch.

It never uses the decoder under test.
"""

import numpy as np
import pyarrow as pa

from tests.chaos.rows import Row, rows_of


def read_rows(blob: bytes) -> tuple[list[Row], list[str]]:
    """The rows of a batch and what is wrong with it."""
    table = pa.ipc.open_stream(pa.BufferReader(blob)).read_next_batch()
    obs = table.column(table.schema.get_field_index("obs"))
    shape = (table.num_rows, *obs.type.shape)
    values = obs.storage.values.to_numpy(zero_copy_only=False).reshape(shape)
    lengths = table.column(table.schema.get_field_index("length")).to_numpy(zero_copy_only=False)
    return rows_of(values, None, np.asarray(lengths))
