"""Seeds for draws: each purpose has its own generator, so that one more draw here moves no number
there.
"""

import hashlib

import torch


def derived_seed(seed: int, *purpose: str | int) -> int:
    """63 bits from the run's seed and what the draw is for; the same in every process and on every
    machine.
    """
    text = "/".join(str(word) for word in (seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator_for(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator of its own for ``purpose``."""
    return torch.Generator().manual_seed(derived_seed(seed, *purpose))
