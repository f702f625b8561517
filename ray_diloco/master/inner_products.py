"""The inner products of a round's deltas: all that a rule over whole deltas needs to know of them,
so that no delta is ever in memory.
"""

from collections.abc import Sequence

import torch

from ray_diloco.master.aggregation import OpenDelta, PieceBuffers
from ray_diloco.tensors.dtypes import pieces
from ray_diloco.tensors.schema import StateSchema

_CHUNK = 8192
"""Numbers of each delta that are held in float64 at once."""


def inner_products(deltas: Sequence[OpenDelta], schema: StateSchema) -> torch.Tensor:
    """(deltas, deltas) in float64, over all that is not statistics, every name of a tie. What is
    not finite shows in the row of its delta.
    """
    rows = PieceBuffers()
    products = torch.zeros(len(deltas), len(deltas), dtype=torch.float64)
    for entry in schema.floating:
        if entry.statistics:
            continue
        for start, stop in pieces(entry.numbers):
            for chunk in rows.columns(deltas, entry, start, stop).split(_CHUNK, dim=1):
                wide = chunk.double()
                products += wide @ wide.T
    return products
