"""Machines like those of a cluster: each with an sshd, an address, a disk, and processes that see no others.

A machine is a set of namespaces of this one. So `ray stop`, which ends every Ray that it sees, sees only its machine's,
and each machine has its own `/tmp` and `/home`. Machines reach one another over a bridge in a further namespace, and
nothing else: no network of this machine is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.support.clusters.system import wait_until
from tests.support.session.bounds import STALL_S

__all__ = ["HOME", "USER", "Machine", "Machines", "why_there_are_none"]

USER = "headrace"
HOME = Path("/home") / USER
PROJECT = Path(__file__).resolve().parents[3]
_SSHD = "/usr/sbin/sshd"
_PROGRAMS = ("unshare", "nsenter", "setpriv", "ip", "mount", "rsync", "ssh", "ssh-keygen", _SSHD)
_BRIDGE = "10.0.0.1/8"  # the default route, which Ray looks up to learn its own address; it ends at the bridge
_NEW_NET = 0x40000000  # CLONE_NEWNET
_APART = ("pid", "net", "mnt", "ipc", "uts")
# setpriv: a machine does not outlive the tests, however they end; --kill-child: nor does anything on it.
_POWER = (
    "setpriv",
    "--pdeathsig",
    "KILL",
    "unshare",
    "--net",
    "--pid",
    "--mount",
    "--ipc",
    "--uts",
    "--fork",
    "--kill-child",
    "--mount-proc",
)
_SWITCH = """
set -e
ip link set lo up
ip link add bridge type bridge
ip address add $1 dev bridge
ip link set bridge up
exec sleep infinity
"""
# The user is an alias of the one who runs the tests, as files of this machine are shared; so `sudo` has nothing to do.
_BOOT = """
set -e
own=$1 name=$2 address=$3 home=$4
shift 4
echo "$name" > /proc/sys/kernel/hostname
until ip link show eth0 > /dev/null 2>&1; do sleep 0.05; done
ip link set lo up
ip address add "$address/8" dev eth0
ip link set eth0 up
ip route add default via 10.0.0.1
for place in /tmp /home /var/lib; do
    mkdir -p "$own$place"
    for shared in "$@"; do
        case $shared in "$place"/*)
            mkdir -p "$own$shared"
            mount --rbind "$shared" "$own$shared"
        esac
    done
    mount --rbind "$own$place" "$place"
done
mount --bind "$own/etc" /etc
mount -t tmpfs tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e -f /etc/ssh/sshd_config
"""
_SSHD_CONFIG = """
Port 22
HostKey /etc/ssh/host_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
MaxStartups 100
"""
_BASHRC = "export PATH=/etc/headrace-bin:$PATH\n"  # after /etc/profile, which sets it
_SUDO = '#!/bin/sh\nexec "$@"\n'


def why_there_are_none() -> str:
    """Return what this system lacks for machines; empty: nothing."""
    if os.getuid() != 0:
        return "machines are made of namespaces, by root alone"
    if missing := [program for program in _PROGRAMS if shutil.which(program) is None]:
        return f"machines need {', '.join(missing)}, which this system does not have"
    probe = subprocess.run(
        [*_POWER, "sh", "-c", "ip link add veth0 type veth peer name veth1 && ip link add bridge0 type bridge"],
        capture_output=True,
        text=True,
        check=False,
    )
    return (
        f"machines need namespaces, which this system does not give to this user: {probe.stderr.strip()}"
        if probe.returncode
        else ""
    )


class Machine:
    """One machine; its disk is a folder.

    Args:
        network: the bridge that it is connected to.
        name: of the machine.
        address: of the machine.
        files: of its disk, with their contents.
    """

    def __init__(self, network: Machines, name: str, address: str, files: dict[str, str]) -> None:
        self._network, self.name, self.address = network, name, address
        self.disk = network.folder / name
        self._power: subprocess.Popen[bytes] | None = None
        self._listening: list[socket.socket] = []
        self._install(files)

    def _install(self, files: dict[str, str]) -> None:
        shutil.copytree("/etc", self.disk / "etc", symlinks=True, ignore_dangling_symlinks=True)
        etc = self.disk / "etc"
        user = f"{USER}:*:{os.getuid()}:{os.getgid()}::{HOME}:/bin/bash\n"
        home = self.disk / str(HOME).lstrip("/")
        (home / ".ssh").mkdir(parents=True, mode=0o700)
        (self.disk / "tmp").mkdir()
        (self.disk / "tmp").chmod(0o1777)
        files = {
            "etc/passwd": user + (etc / "passwd").read_text(),
            "etc/hosts": f"127.0.0.1 localhost\n{self.address} {self.name}\n",
            "etc/ssh/sshd_config": _SSHD_CONFIG,
            "etc/headrace-bin/sudo": _SUDO,
            f"{HOME}/.bashrc".lstrip("/"): _BASHRC,
            **files,
        }
        for path, text in files.items():
            (self.disk / path).parent.mkdir(parents=True, exist_ok=True)
            (self.disk / path).write_text(text)
            if path.endswith(".key"):
                (self.disk / path).chmod(0o600)
        (etc / "headrace-bin" / "sudo").chmod(0o755)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(etc / "ssh" / "host_key")],
            check=True,
            stdin=subprocess.DEVNULL,
        )
        key = self._network.key
        for source, to in ((key, "id_ed25519"), (key.with_suffix(".pub"), "authorized_keys")):
            shutil.copy(source, home / ".ssh" / to)
            (home / ".ssh" / to).chmod(0o600)

    # ------------------------------------------------------------------ power

    def boot(self) -> None:
        """Turn it on, and wait for its sshd. Nothing else runs there."""
        shared = [str(PROJECT), sys.base_prefix, str(self._network.folder.parent)]
        with (self.disk / "boot.log").open("ab") as log:
            self._power = subprocess.Popen(
                [*_POWER, "sh", "-c", _BOOT, "machine", str(self.disk), self.name, self.address, str(HOME), *shared],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
            )
        self._network.plug(self.first(), self.name)
        wait_until(
            f"{self.name} has booted", lambda: _is_sshd(Path(f"/proc/{self.first()}/cmdline").read_text()), STALL_S
        )
        self._refuse_company()
        wait_until(
            f"{self.name} takes ssh", lambda: self.run("ssh", *_SSH, self.address, "true").returncode == 0, STALL_S
        )
        for port in self._network.ports:
            self._forward(port)

    def first(self) -> int:
        """Return the id of the machine's first process, whose end ends all others."""
        assert self._power is not None
        children = Path(f"/proc/{self._power.pid}/task/{self._power.pid}/children")

        def child() -> int:
            assert self._power is not None
            assert self._power.poll() is None, (self.disk / "boot.log").read_text()
            words = children.read_text().split()
            # Between its fork and its unshare, it is not in the new namespaces yet.
            return int(words[0]) if words and _spaces(int(words[0])).isdisjoint(_spaces(os.getpid())) else 0

        return int(wait_until(f"{self.name} is on", child, STALL_S))

    def _refuse_company(self) -> None:
        """Assert that processes of this machine see none outside it: `ray stop` will be one of them."""
        assert _spaces(self.first()).isdisjoint(_spaces(os.getpid()))
        visible = self.run("sh", "-c", "cd /proc && echo [0-9]*").stdout.split()
        assert visible, self.run("true").stderr
        assert visible[0] == "1"
        assert len(visible) < 20, visible  # only sshd and the asking process
        assert _is_sshd(self.run("cat", "/proc/1/cmdline").stdout)

    def cut_power(self) -> None:
        """SIGKILL everything on it, without notice to others; the disk stays."""
        if self._power is not None:
            self._network.unplug(self.name)
        for socket_ in self._listening:
            socket_.close()
        self._listening.clear()
        if self._power is not None:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                os.kill(self.first(), 9)
            self._power.kill()
            self._power.wait()
            self._power = None

    @contextlib.contextmanager
    def cut_off(self) -> Iterator[None]:
        """Take its link down at the bridge during the block, without notice; processes on it continue."""
        self._network.link(self.name, "down")
        try:
            yield
        finally:
            self._network.link(self.name, "up")

    # ------------------------------------------------------------------ processes

    def command(self, *words: str, environment: dict[str, str] | None = None, cwd: str = str(HOME)) -> list[str]:
        """Return the command that runs another one there, as in a login of the user."""
        variables = {
            "HOME": str(HOME),
            "USER": USER,
            "PATH": "/etc/headrace-bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "LANG": "C.UTF-8",
            **(environment or {}),
        }
        there = ["nsenter", "-t", str(self.first()), "-m", "-u", "-i", "-n", "-p", "env", "-i", "-C", cwd]
        return [*there, *(f"{name}={value}" for name, value in variables.items()), *words]

    def run(
        self, *words: str, environment: dict[str, str] | None = None, timeout_s: float = 600.0
    ) -> subprocess.CompletedProcess[str]:
        """Run a command there to its end."""
        return subprocess.run(
            self.command(*words, environment=environment),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def processes(self) -> dict[int, str]:
        """Return the command lines of its processes by this machine's ids."""
        space, found = _spaces(self.first(), "pid"), {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if _spaces(int(folder.name), "pid") == space:
                    found[int(folder.name)] = (
                        (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                    )
        return found

    def running(self, program: str) -> set[int]:
        """Return its processes of a program; empty while it is off."""
        return (
            set()
            if self._power is None
            else {pid for pid, command in self.processes().items() if Path(command.partition(" ")[0]).name == program}
        )

    def kill_all_but_sshd(self) -> int:
        """SIGKILL processes until only sshd is left; return how many were killed."""
        killed = set[int]()

        def nothing_is_left() -> bool:
            left = [pid for pid, command in self.processes().items() if command and not _is_sshd(command)]
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)
            killed.update(left)
            return not left

        wait_until(f"nothing runs on {self.name}", nothing_is_left, STALL_S)
        return len(killed)

    def _forward(self, port: int) -> None:
        """Forward a port of its loopback address to this machine's: the database server of a site's machine."""

        def listen() -> None:
            with Path(f"/proc/{self.first()}/ns/net").open("rb") as space:
                assert ctypes.CDLL(None, use_errno=True).setns(space.fileno(), _NEW_NET) == 0
            listening.append(socket.create_server(("127.0.0.1", port)))

        listening: list[socket.socket] = []
        thread = threading.Thread(target=listen)  # a namespace belongs to a thread
        thread.start()
        thread.join()
        (made,) = listening
        self._listening.append(made)
        threading.Thread(target=_accept, args=(made, port), daemon=True).start()


_SSH = (
    "-o",
    "StrictHostKeyChecking=no",
    "-o",
    "UserKnownHostsFile=/dev/null",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=5",
)


def _is_sshd(command: str) -> bool:
    return command.startswith((_SSHD, "sshd"))


def _spaces(pid: int, *kinds: str) -> set[str]:
    return {str(Path(f"/proc/{pid}/ns/{kind}").readlink()) for kind in kinds or _APART}


def _accept(listening: socket.socket, port: int) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listening.accept()
            try:
                server = socket.create_connection(("127.0.0.1", port))
            except OSError:
                client.close()
                continue
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=_pump, args=(one, other), daemon=True).start()


def _pump(one: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := one.recv(65536):
            other.sendall(data)
    for end in (one, other):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


class Machines:
    """Machines on one bridge.

    Args:
        folder: of their disks.
        ports: of this machine's loopback address that they share.
    """

    def __init__(self, folder: Path, ports: Sequence[int] = ()) -> None:
        self.folder, self.ports = folder, tuple(ports)
        self.key = folder / "key"
        self.machines: list[Machine] = []
        self._switch: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True)
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True, stdin=subprocess.DEVNULL
        )

    def add(self, name: str, address: str, files: dict[str, str] | None = None) -> Machine:
        """Add a machine; it is off."""
        self.machines.append(Machine(self, name, address, files or {}))
        return self.machines[-1]

    def plug(self, pid: int, name: str) -> None:
        """Connect the machine with this first process."""
        self._at_switch("ip", "link", "add", _port(name), "type", "veth", "peer", "name", "eth0", "netns", str(pid))
        self._at_switch("ip", "link", "set", _port(name), "master", "bridge", "up")

    def unplug(self, name: str) -> None:
        """Disconnect a machine."""
        self._at_switch("ip", "link", "delete", _port(name))

    def link(self, name: str, way: str) -> None:
        """Set a machine's link "up" or "down"; connections stay, and packets are lost."""
        self._at_switch("ip", "link", "set", _port(name), way)

    def _at_switch(self, *words: str) -> None:
        assert self._switch is not None
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{self._switch.pid}/ns/net", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"

    @contextlib.contextmanager
    def running(self) -> Iterator[Machines]:
        """Keep all of them on during the block."""
        switch = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", "unshare", "--net", "sh", "-c", _SWITCH, "switch", _BRIDGE]
        )
        self._switch = switch
        try:
            wait_until("the bridge is up", lambda: _has_bridge(switch.pid), STALL_S)
            for machine in self.machines:
                machine.boot()
            yield self
        finally:
            try:
                for machine in self.machines:
                    machine.cut_power()
            finally:
                switch.kill()
                switch.wait()


def _port(name: str) -> str:
    return f"to-{name}"[:15]  # the longest name of an interface


def _has_bridge(pid: int) -> bool:
    if not _spaces(pid, "net").isdisjoint(_spaces(os.getpid(), "net")):
        return False
    shown = subprocess.run(
        ["nsenter", f"--net=/proc/{pid}/ns/net", "ip", "-br", "address"], capture_output=True, text=True, check=False
    ).stdout
    return _BRIDGE in shown
