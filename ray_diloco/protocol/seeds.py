"""Where every random draw starts: a generator of its own for each purpose."""

import hashlib
import random


def seed_of(run_seed: int, node_id: str, purpose: str) -> int:
    """A seed of 64 bits from the run's seed, the participant and the purpose, for any generator
    (numpy, torch). The same on every machine, in every process and version of Python.
    """
    words = f"{run_seed}\x1f{node_id}\x1f{purpose}".encode()
    return int.from_bytes(hashlib.sha256(words).digest()[:8], "big")


def seeded(run_seed: int, node_id: str, purpose: str) -> random.Random:
    """A fresh generator that starts from `seed_of`. Its ``random()`` and ``getrandbits()`` give the
    same numbers in every version of Python; other methods may change between versions.
    """
    return random.Random(seed_of(run_seed, node_id, purpose))
