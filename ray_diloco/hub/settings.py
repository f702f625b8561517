"""Where the hub is and how long its answers are waited for. There is no field for a token."""

from dataclasses import dataclass
from enum import StrEnum

HUGGINGFACE_ENDPOINT = "https://huggingface.co"


class HubKind(StrEnum):
    """Which repository serves a run."""

    embedded = "embedded"
    huggingface = "huggingface"
    memory = "memory"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSettings:
    """The group `hub` of the configuration. Tokens come from HF_TOKEN or the Hub's own login."""

    # embedded: served by the run itself; huggingface: huggingface.co; memory: for tests
    kind: HubKind = HubKind.embedded
    # address of a hub that already runs; None: the embedded hub's own, or huggingface.co
    endpoint: str | None = None
    # owner/name of the model repository; None: made from the run
    repo_id: str | None = None
    # the branch that the exchange uses; nobody else may commit to it
    branch: str = "main"
    # accept a repository that everybody can read
    allow_public: bool = False
    # commits per hour of all participants together; huggingface.co refuses more than 128
    commits_per_hour: int = 100
    # seconds until a connection must stand
    connect_timeout: float = 10.0
    # seconds that the other side may be silent within a call
    read_timeout: float = 30.0
    # seconds that a call without large files may take in all
    total_timeout: float = 60.0
    # seconds that moving one call's large files may take in all
    transfer_timeout: float = 3600.0
    # seconds over which a call that failed for passing reasons is tried again
    retry_deadline: float = 300.0
    # seconds before the first repetition; it doubles each time, up to `retry_longest`
    retry_first: float = 0.5
    # seconds between repetitions at most
    retry_longest: float = 30.0
    # seconds to wait at most because the hub said so (429)
    quota_longest: float = 3600.0
    # address that the embedded hub listens on; anything but loopback is open to that network
    host: str = "127.0.0.1"
    # port of the embedded hub; 0: any free one
    port: int = 0
    # commits after which the master squashes the history; 0: never
    squash_every: int = 0
