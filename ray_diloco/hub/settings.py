"""Where the hub is and how long its answers are waited for. There is no field for a token."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.choices import unknown_choice
from ray_diloco.protocol.settings import DURATION, LONGEST_SECONDS

HUGGINGFACE_ENDPOINT = "https://huggingface.co"

FAULT_KINDS = (
    "busy",  # a commit meets another one: 409
    "quota",  # a commit is one too many: 429, with the Hub's text
    "errors",  # this request and the next few are answered 500 to 504
    "landed_500",  # a commit lands, and 500 is the answer
    "lost",  # a request takes effect, and the connection breaks before the answer
    "reset",  # the connection breaks before anything happened
    "stall",  # silence for `fault_seconds`, then as `reset`
    "truncate",  # half of a file arrives, then the connection breaks
    "flip",  # a file arrives with one bit flipped
    "lag",  # a branch is seen where it was one commit ago
    "slow",  # a file takes `fault_seconds`, up or down
    "expire",  # an upload address is no longer good
)
"""What the embedded hub can do to a request on purpose."""


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
    # commits per hour of all participants together where they are counted: huggingface.co, strict
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
    # write README.md, a model card, when a run that was led on huggingface.co ends
    model_card: bool = True
    # the embedded hub refuses like huggingface.co: 128 commits an hour, one at a time
    strict: bool = False
    # what the embedded hub does to requests on purpose, each kind with a probability: {reset: 0.1}
    faults: dict[str, float] = field(default_factory=dict)
    # seconds that its stalls, slow files and waits after a 429 last
    fault_seconds: float = 1.0

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        for name in _SECONDS:
            if not 0 < getattr(self, name) <= LONGEST_SECONDS:
                raise ConfigError(f"hub.{name}", getattr(self, name), f"expected {DURATION}")
        if self.commits_per_hour < 1:
            raise ConfigError("hub.commits_per_hour", self.commits_per_hour, "expected at least 1")
        if self.squash_every < 0:
            raise ConfigError("hub.squash_every", self.squash_every, "expected at least 0")
        self._check_address()
        self._check_repository()
        for kind, probability in self.faults.items():
            if kind not in FAULT_KINDS:
                raise unknown_choice("hub.faults", kind, FAULT_KINDS)
            if not 0 <= probability <= 1:
                raise ConfigError(f"hub.faults.{kind}", probability, "expected 0 to 1")

    def _check_address(self) -> None:
        if not 0 <= self.port <= LARGEST_PORT:
            raise ConfigError("hub.port", self.port, f"expected 0 (any free one) to {LARGEST_PORT}")
        if not self.host.strip():
            raise ConfigError(
                "hub.host", self.host, "expected an address of this machine, such as 127.0.0.1"
            )
        if self.endpoint is not None and not _is_address(self.endpoint):
            raise ConfigError(
                "hub.endpoint", self.endpoint, "expected an address, such as http://127.0.0.1:8765"
            )

    def _check_repository(self) -> None:
        """By the Hub's own rules for names, and Git's for branches."""
        if self.repo_id is not None and not _is_repository(self.repo_id):
            raise ConfigError(
                "hub.repo_id",
                self.repo_id,
                "expected owner/name (or a name) of letters, digits, '-', '_' and '.', with none "
                "of '-' and '.' first or last and no '--' or '..', 96 characters at most",
            )
        if not _is_branch(self.branch):
            raise ConfigError(
                "hub.branch",
                self.branch,
                "expected letters, digits, '-', '_', '.' and '/', such as main or runs/1",
            )

    @property
    def budget(self) -> int | None:
        """Commits per hour that all participants share; None where nobody counts them."""
        counted = self.kind is HubKind.huggingface or self.strict
        return self.commits_per_hour if counted else None


LARGEST_PORT = 65535
_REPOSITORY = re.compile(r"(?!.*(--|\.\.))([A-Za-z0-9_.-]+/)?[A-Za-z0-9_.-]+")
_BRANCH = re.compile(r"(?!.*(\.\.|//|/\.|\.lock(/|$)))[A-Za-z0-9_][A-Za-z0-9_./-]{0,199}")


def _is_address(endpoint: str) -> bool:
    try:
        parts = urlsplit(endpoint)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number, brackets that do not close
        return False


def _is_repository(repo_id: str) -> bool:
    fits = _REPOSITORY.fullmatch(repo_id) is not None and len(repo_id) <= 96
    return fits and not any(word[0] in "-." or word[-1] in "-." for word in repo_id.split("/"))


def _is_branch(name: str) -> bool:
    return _BRANCH.fullmatch(name) is not None and name[-1] not in "./"


_SECONDS = (
    "connect_timeout",
    "read_timeout",
    "total_timeout",
    "transfer_timeout",
    "retry_deadline",
    "retry_first",
    "retry_longest",
    "quota_longest",
    "fault_seconds",
)
