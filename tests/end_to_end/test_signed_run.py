"""A run whose deltas and globals are signed, and somebody who only may write to its repository."""

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from ray_diloco.experiment.reading import read_config
from ray_diloco.experiment.run import run
from ray_diloco.experiment.schema import Config


def key_in(folder: Path, name: str) -> tuple[str, str]:
    private = ed25519.Ed25519PrivateKey.generate()
    file = folder / name
    encoding = serialization.Encoding
    file.write_bytes(
        private.private_bytes(
            encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
    )
    public = private.public_key().public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return str(file), public.decode()


def settings(security: dict[str, Any]) -> Config:
    return read_config(
        {
            "run": {"max_steps": 12},
            "time": {"kind": "virtual"},
            "engine": {"name": "inproc"},
            "hub": {"kind": "memory"},
            "cluster": {"nodes": 2, "profiles": [{"seconds_per_step": 1.0}]},
            "diloco": {"inner_steps": 4, "poll_interval": 2.0, "bootstrap_timeout": 20.0},
            "data": {"name": "synthetic", "synthetic_bytes": 20_000},
            "model": {"name": "mlp"},
            "inner": {"warmup_steps": 2},
            "security": security,
        }
    )


def test_a_signed_run_is_like_one_that_is_not(tmp_path: Path) -> None:
    path, public = key_in(tmp_path, "key")
    plain = run(settings({}), tmp_path / "plain").numbers
    signed = run(
        settings({"signing_key": path, "trusted_keys": [public]}), tmp_path / "signed"
    ).numbers
    assert (signed["status"], signed["range_sum"], signed["rejected_deltas"]) == ("done", "ok", 0)
    assert signed["eval_loss"] == plain["eval_loss"]


def test_without_a_trusted_signature_no_global_is_taken(tmp_path: Path) -> None:
    _, public = key_in(tmp_path, "friend")
    numbers = run(settings({"trusted_keys": [public]}), tmp_path / "run").numbers
    assert numbers["status"] == "failed"
    assert numbers["outer_steps"] == 0
