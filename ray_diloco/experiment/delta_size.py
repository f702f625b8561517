"""How large the deltas of a run will be."""

import math

import torch

from ray_diloco.experiment.schema import Config
from ray_diloco.tensors.codec import CODECS
from ray_diloco.tensors.dtypes import PIECE
from ray_diloco.workload.outline import outline


def delta_bytes(config: Config) -> int:
    """A delta as the run's codec writes it, headers left out: of the whole model, or of one of its
    fragments in the mean.
    """
    parts = CODECS[config.diloco.codec].encode(torch.zeros(PIECE))
    numbers = outline(config.model).sizes.numbers / config.diloco.fragments
    return math.ceil(numbers * sum(part.nbytes for part in parts) / PIECE)
