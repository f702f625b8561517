"""Signing deltas and globals with ed25519 (RFC 8032), and checking who signed.

Signed is everything that a delta's header or a global's card says, the hash of the payload and of
the model among it. The signature travels in the header or card; a plain peer ignores it.
"""

import binascii
import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ray_diloco.errors import ConfigError
from ray_diloco.protocol.global_card import GlobalCard

SIGNED_BY, SIGNATURE = "signed_by", "signature"
PLACEHOLDER = "0" * 128
"""As long as a signature."""


class Signer:
    """A private key. ``public``: its public half, 64 hexadecimal digits."""

    def __init__(self, private: Any) -> None:
        self._private = private
        self.public: str = private.public_key().public_bytes_raw().hex()

    def signed_header(self, header: Mapping[str, str]) -> dict[str, str]:
        """A delta's header, complete but for the signature, with it."""
        named = {**header, SIGNED_BY: self.public}
        return {**named, SIGNATURE: self._private.sign(delta_statement(named)).hex()}

    def signed_card(self, card: GlobalCard) -> GlobalCard:
        """A global's card with the signature."""
        named = replace(card, signed_by=self.public)
        return replace(named, signature=self._private.sign(card_statement(named)).hex())


class Trust:
    """``keys``: by their public halves."""

    def __init__(self, keys: Mapping[str, Any]) -> None:
        self._keys = dict(keys)

    def objection_to_header(self, header: Mapping[str, str]) -> str | None:
        """Why a delta is not trusted; None when it is."""
        return self._objection(
            delta_statement(header), header.get(SIGNED_BY), header.get(SIGNATURE)
        )

    def objection_to_card(self, card: GlobalCard) -> str | None:
        """Why a global is not trusted; None when it is."""
        return self._objection(card_statement(card), card.signed_by, card.signature)

    def _objection(
        self, statement: bytes, signed_by: str | None, signature: str | None
    ) -> str | None:
        from cryptography.exceptions import InvalidSignature

        if signed_by is None or signature is None:
            return "it is not signed"
        key = self._keys.get(signed_by)
        if key is None:
            return f"it is signed by {signed_by[:16]}, which is not among security.trusted_keys"
        try:
            key.verify(binascii.unhexlify(signature), statement)
        except (InvalidSignature, ValueError):
            return f"its signature by {signed_by[:16]} does not fit what it says"
        return None


def delta_statement(header: Mapping[str, str]) -> bytes:
    """What is signed of a delta."""
    said = {key: value for key, value in header.items() if key != SIGNATURE}
    return b"ray_diloco delta\n" + json.dumps(said, sort_keys=True).encode()


def card_statement(card: GlobalCard) -> bytes:
    """What is signed of a global."""
    return b"ray_diloco global\n" + replace(card, signature=None).to_json()


def read_signer(path: str) -> Signer:
    """The key in a file, in the format of OpenSSH or PEM. ConfigError, without its content."""
    serialization, ed25519 = _cryptography("security.signing_key", path)
    try:
        content = Path(path).expanduser().read_bytes()
        openssh = b"OPENSSH PRIVATE KEY" in content
        load = serialization.load_ssh_private_key if openssh else serialization.load_pem_private_key
        private = load(content, password=None)
    except OSError as error:
        raise ConfigError("security.signing_key", path, f"expected a file: {error}") from None
    except Exception:  # every kind of wrong file; what it holds must not be shown
        private = None
    if not isinstance(private, ed25519.Ed25519PrivateKey):
        raise ConfigError(
            "security.signing_key",
            path,
            "expected an ed25519 private key without passphrase: ssh-keygen -t ed25519 -N ''",
        )
    return Signer(private)


def read_trust(keys: Iterable[str], *, own: str | None) -> Trust:
    """Whom these public keys stand for; ``own``: the public half of the own key, hexadecimal.
    ConfigError.
    """
    serialization, ed25519 = _cryptography("security.trusted_keys", list(keys))
    trusted: dict[str, Any] = {}
    for text in keys:
        key: Any = None
        with contextlib.suppress(Exception):  # of many kinds
            key = serialization.load_ssh_public_key(text.encode())
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise ConfigError("security.trusted_keys", text, "expected 'ssh-ed25519 AAAA...'")
        trusted[key.public_bytes_raw().hex()] = key
    if own is not None:
        trusted[own] = ed25519.Ed25519PublicKey.from_public_bytes(bytes.fromhex(own))
    return Trust(trusted)


def _cryptography(setting: str, value: object) -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise ConfigError(
            setting, value, "expected the package cryptography: pip install ray-diloco[security]"
        ) from None
    return serialization, ed25519
