"""`ray-diloco-hub`: serve a folder as a hub until a signal comes."""

import argparse
import contextlib
import os
import shlex
import signal
import sys
from pathlib import Path

from ray_diloco.hub.embedded.server import EmbeddedHub
from ray_diloco.hub.embedded.strict import STRICT, Rules
from ray_diloco.hub.secret import Secret
from ray_diloco.unread import say, until_unread


def main() -> None:
    """Print the endpoint, and the token or its file; serve, stop cleanly on SIGINT and SIGTERM."""
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with until_unread():
        arguments = _parser().parse_args()
    try:
        hub = EmbeddedHub(
            arguments.folder,
            host=arguments.host,
            port=arguments.port,
            token=_token(arguments.token_file),
            rules=STRICT if arguments.strict else Rules(),
        ).start()
    except OSError as error:
        sys.exit(f"ray-diloco-hub: cannot serve {arguments.folder}: {error}")
    with contextlib.closing(hub):
        say(f"HF_ENDPOINT={hub.endpoint}")
        file = arguments.token_file
        shown = hub.token.reveal() if file is None else f"$(cat {shlex.quote(str(file))})"
        say(f"HF_TOKEN={shown}")
        signal.sigwait(signals)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ray-diloco-hub",
        description="A Hugging Face hub of your own: model repositories in a folder, over HTTP.",
    )
    parser.add_argument("--folder", type=Path, default=Path("hub"), help="what to serve [./hub]")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on [127.0.0.1]")
    parser.add_argument("--port", type=int, default=0, help="port to listen on [any free one]")
    parser.add_argument(
        "--token-file",
        type=Path,
        help="file with the token; made, readable by you alone, when missing [a new one each time]",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="refuse like huggingface.co: 128 commits an hour, one at a time",
    )
    return parser


def _token(file: Path | None) -> Secret | None:
    """The token in the file; a new one is written there when there is none."""
    if file is None:
        return None
    if file.exists():
        return Secret(file.read_text().strip())
    token = Secret("hf_" + os.urandom(24).hex())
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w") as opened:
        opened.write(token.reveal() + "\n")
    return token


if __name__ == "__main__":
    main()
