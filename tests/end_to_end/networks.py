"""Machines of which each has a network namespace and a disk of its own; one switch joins them."""

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
from end_to_end.programs import END_SECONDS

SUBNET = "10.77.0"
"""Only namespaces of ours know it."""
SWITCH = "switch"
_INSIDE = 'mount --bind "$0" "$1" && shift && exec "$@"'
"""Of a shell whose mounts nobody else sees, which is what ``ip netns exec`` gives."""


class Network:
    """``names``: of the machines. ``folder``: gets a disk for each; what is at ``place`` in it is
    another folder on each machine, and all else is shared.
    """

    def __init__(self, names: Sequence[str], folder: Path) -> None:
        self._prefix = f"diloco-{os.getpid()}"
        self._folder = folder
        self.place = folder / "disk"
        self.place.mkdir()
        self._add(SWITCH)
        ip("-n", self._named(SWITCH), "link", "add", "bridge", "up", "type", "bridge")
        self.names = tuple(names)
        self._addresses = {name: f"{SUBNET}.{n}" for n, name in enumerate(names, start=1)}
        for name, address in self._addresses.items():
            (folder / f"disk-of-{name}").mkdir()
            self._add(name)
            self._plug_in(name, address)

    def address(self, name: str) -> str:
        return self._addresses[name]

    def inside(self, name: str) -> tuple[str, ...]:
        """What to put before a command so that it runs on the machine."""
        disk = str(self._folder / f"disk-of-{name}")
        shell = ("sh", "-c", _INSIDE, disk, str(self.place))
        return ("ip", "netns", "exec", self._named(name), *shell)

    def cut(self, name: str) -> None:
        """Pull its plug: what is sent there or from there is lost."""
        self._port(name, "down")

    def mend(self, name: str) -> None:
        self._port(name, "up")

    def power_off(self, name: str) -> None:
        """What runs there ends at once, without a word."""
        kill_all(self._named(name))

    def processes(self, name: str) -> list[psutil.Process]:
        """That run on the machine."""
        found = [int(each) for each in ip("netns", "pids", self._named(name)).split()]
        return [psutil.Process(each) for each in found if psutil.pid_exists(each)]

    def _plug_in(self, name: str, address: str) -> None:
        machine, switch = self._named(name), self._named(SWITCH)
        cable = ("type", "veth", "peer", "name", f"to-{name}", "netns", switch)
        ip("-n", machine, "link", "add", "eth0", *cable)
        ip("-n", machine, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", machine, "link", "set", "dev", "eth0", "up")
        ip("-n", machine, "route", "add", "default", "dev", "eth0")
        ip("-n", switch, "link", "set", "dev", f"to-{name}", "master", "bridge", "up")

    def _port(self, name: str, state: str) -> None:
        ip("-n", self._named(SWITCH), "link", "set", "dev", f"to-{name}", state)

    def _add(self, name: str) -> None:
        ip("netns", "add", self._named(name))
        ip("-n", self._named(name), "link", "set", "dev", "lo", "up")

    def _named(self, name: str) -> str:
        return f"{self._prefix}-{name}"


@contextmanager
def network(*names: str, folder: Path) -> Generator[Network, None, None]:
    """For as long as the context lasts. What a test left that was killed goes first."""
    for each in _namespaces("diloco-"):
        owner = re.match(r"diloco-(\d+)-", each)
        if owner is not None and not psutil.pid_exists(int(owner[1])):
            remove(each)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [remove(each) for each in _namespaces(f"diloco-{os.getpid()}-")])
        yield Network(names, folder)


def why_not() -> str:
    """What namespaces need here, and do not have; empty where they can be made."""
    if shutil.which("ip") is None:
        return "needs the command ip (iproute2), which .ci/run installs"
    if os.geteuid() != 0:
        return "needs root, which makes network namespaces"
    name = f"diloco-{os.getpid()}-trial"
    try:
        ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"needs network namespaces: {error.stderr.strip()}"
    ip("netns", "del", name)
    return ""


def remove(namespace: str) -> None:
    """Kill what runs in it, and take it away; its devices go with it."""
    kill_all(namespace)
    ip("netns", "del", namespace)


def kill_all(namespace: str) -> None:
    """Until nothing runs in it, since what is killed may have started something just before."""
    ends = time.monotonic() + END_SECONDS
    while found := ip("netns", "pids", namespace).split():
        assert time.monotonic() < ends, f"cannot be killed: {found}"
        for each in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                psutil.Process(int(each)).kill()
        time.sleep(0.02)  # processes of another one are waited for


def ip(*words: str) -> str:
    """What it prints; CalledProcessError when it refuses."""
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


def _namespaces(prefix: str) -> list[str]:
    lines = ip("netns", "list").splitlines()
    return [line.split()[0] for line in lines if line.startswith(prefix)]
