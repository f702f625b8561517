"""Who signed what: keys from files, deltas' headers, globals' cards."""

from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from ray_diloco.errors import ConfigError
from ray_diloco.hub.security import SecuritySettings
from ray_diloco.hub.signature import Signer
from ray_diloco.protocol.delta_card import DeltaCard
from ray_diloco.protocol.global_card import GlobalCard
from ray_diloco.protocol.ranges import StepRanges

OPENSSH = serialization.PrivateFormat.OpenSSH
PEM = serialization.PrivateFormat.PKCS8


def key_in(folder: Path, name: str, kind: serialization.PrivateFormat = OPENSSH) -> tuple[str, str]:
    """Path of a new private key, and its public half as a line."""
    private = ed25519.Ed25519PrivateKey.generate()
    file = folder / name
    file.write_bytes(
        private.private_bytes(serialization.Encoding.PEM, kind, serialization.NoEncryption())
    )
    public = private.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    return str(file), public.decode()


def signer_of(path: str) -> Signer:
    signer = SecuritySettings(signing_key=path).signer()
    assert signer is not None
    return signer


def header() -> dict[str, str]:
    card = DeltaCard(
        node_id="a",
        local_step=8,
        base_outer_step=2,
        nonce="n",
        covers=StepRanges.of(1, 8),
        sha256="5" * 64,
        run_id="r",
    )
    return card.header()


def card() -> GlobalCard:
    return GlobalCard(
        outer_step=3, run_id="r", publication_id="p", model_sha256="5" * 64, master_epoch=1
    )


@pytest.mark.parametrize("kind", [OPENSSH, PEM])
def test_a_signed_delta_is_trusted_by_who_knows_the_key(
    tmp_path: Path, kind: serialization.PrivateFormat
) -> None:
    path, public = key_in(tmp_path, "key", kind)
    trust = SecuritySettings(trusted_keys=[public + " somebody@somewhere"]).trust()
    assert trust is not None
    signed = signer_of(path).signed_header(header())
    assert trust.objection_to_header(signed) is None
    assert DeltaCard.from_header(signed, path="nodes/a/delta_8.safetensors").local_step == 8


@pytest.mark.parametrize("field", sorted(header()))
def test_whatever_a_delta_says_is_covered_by_its_signature(tmp_path: Path, field: str) -> None:
    path, public = key_in(tmp_path, "key")
    trust = SecuritySettings(trusted_keys=[public]).trust()
    assert trust is not None
    signed = signer_of(path).signed_header(header())
    assert "does not fit" in str(trust.objection_to_header({**signed, field: "7"}))
    assert "does not fit" in str(trust.objection_to_header({**signed, "signature": "zz"}))


def test_a_stranger_and_who_does_not_sign_are_named_as_such(tmp_path: Path) -> None:
    path, _ = key_in(tmp_path, "stranger")
    _, public = key_in(tmp_path, "friend")
    trust = SecuritySettings(trusted_keys=[public]).trust()
    assert trust is not None
    assert trust.objection_to_header(header()) == "it is not signed"
    stranger = signer_of(path)
    told = str(trust.objection_to_header(stranger.signed_header(header())))
    assert stranger.public[:16] in told
    assert "security.trusted_keys" in told
    assert trust.objection_to_card(card()) == "it is not signed"
    assert "security.trusted_keys" in str(trust.objection_to_card(stranger.signed_card(card())))


def test_a_signed_global_is_trusted_after_its_way_through_json(tmp_path: Path) -> None:
    path, public = key_in(tmp_path, "key")
    trust = SecuritySettings(trusted_keys=[public]).trust()
    assert trust is not None
    arrived = GlobalCard.from_json(signer_of(path).signed_card(card()).to_json())
    assert trust.objection_to_card(arrived) is None
    for changed in (
        replace(arrived, model_sha256="6" * 64),
        replace(arrived, outer_step=4),
        replace(arrived, stop="now"),
    ):
        assert "does not fit" in str(trust.objection_to_card(changed))


def test_the_own_key_is_trusted_beside_the_others(tmp_path: Path) -> None:
    own, _ = key_in(tmp_path, "own")
    _, other = key_in(tmp_path, "other")
    trust = SecuritySettings(signing_key=own, trusted_keys=[other]).trust()
    assert trust is not None
    assert trust.objection_to_card(signer_of(own).signed_card(card())) is None


def test_without_trusted_keys_everybody_is_trusted_and_without_a_key_nothing_is_signed() -> None:
    assert (SecuritySettings().trust(), SecuritySettings().signer()) == (None, None)
    assert b"sign" not in card().to_json()


def test_what_is_no_key_is_refused_without_being_shown(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    private = ec.generate_private_key(ec.SECP256R1())
    content = private.private_bytes(
        serialization.Encoding.PEM, PEM, serialization.NoEncryption()
    ).decode()
    for text in (content, "-----BEGIN PRIVATE KEY-----\nMC4CAQAw\n", ""):
        wrong.write_text(text)
        with pytest.raises(ConfigError, match=r"security\.signing_key") as caught:
            SecuritySettings(signing_key=str(wrong)).check()
        assert "MC4" not in str(caught.value)
    with pytest.raises(ConfigError, match="expected a file"):
        SecuritySettings(signing_key=str(tmp_path / "none")).check()
    with pytest.raises(ConfigError, match="ssh-ed25519"):
        SecuritySettings(trusted_keys=["ssh-rsa AAAA"]).check()
