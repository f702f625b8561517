"""The fixed words of the protocol."""

from typing import Literal

ALGORITHM = "dumb_diloco"
OPTIMIZER = "nesterov_sgd"
PROTOCOL_VERSION = 1

OUT_OF_TURN = "commit budget"
"""Why a boundary was skipped whose turn had not come."""

NEVER_HAD_A_GLOBAL = -1
"""`base_outer_step` of a delta whose node trained before any global model was published."""

Install = Literal["rebase", "boundary", "replace"]
"""What a node does with a newer global model."""

Role = Literal["master", "worker", "single"]
