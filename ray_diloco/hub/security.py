"""Group ``security``: who may take part by signature, beside who may write to the repository."""

from dataclasses import dataclass, field

from ray_diloco.hub.signature import Signer, Trust, read_signer, read_trust


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """Keys are ed25519, as ``ssh-keygen -t ed25519`` makes them. Needs `cryptography`."""

    signing_key: str | None = None
    """Path of the private key that signs deltas and globals, on the machine of each participant;
    null: unsigned."""
    trusted_keys: list[str] = field(default_factory=list)
    """Public keys ("ssh-ed25519 AAAA...") whose deltas and globals are taken, beside the own one;
    empty: all are."""

    def check(self) -> None:
        """ConfigError for the first setting that cannot be used."""
        self.signer()
        self.trust()

    def signer(self) -> Signer | None:
        """What signs; None when nothing does. ConfigError when the key cannot be read."""
        return read_signer(self.signing_key) if self.signing_key is not None else None

    def trust(self) -> Trust | None:
        """Whom to trust; None for everybody. ConfigError for what is no key."""
        if not self.trusted_keys:
            return None
        signer = self.signer()
        return read_trust(self.trusted_keys, own=signer.public if signer is not None else None)
