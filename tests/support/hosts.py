"""Separate hosts out of Linux namespaces, each with its own network, processes, files and sshd, on a private bridge.

A host sees this machine's files and keeps its own changes in memory; `shared` folders are the same on all. The bridge
lies in the network of the first host and has no way out. Needs root, overlayfs, sshd, ip, unshare and nsenter.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

TOOLS = ("sshd", "ssh", "ssh-keygen", "rsync", "ip", "unshare", "nsenter", "mount")
_START_S = 20.0
_INIT = """
set -e
mount --make-rprivate /
mount -t tmpfs -o size=3g tmpfs {folder}
mkdir -p {folder}/upper {folder}/work {folder}/root
mount -t overlay overlay -o lowerdir=/,upperdir={folder}/upper,workdir={folder}/work {folder}/root
cd {folder}/root
mount -t proc proc proc
mount --bind /dev dev
mount -t devpts -o newinstance,ptmxmode=0666,gid=5 devpts dev/pts
mount --bind dev/pts/ptmx dev/ptmx
mount -t tmpfs -o size=2g tmpfs dev/shm
mount --rbind /sys sys
rm -rf root/.ray root/.bashrc root/.ssh tmp/ray tmp/ray_ssh_*
mkdir -p tmp/ray run/sshd root/.ssh
mount -t tmpfs -o size=1g tmpfs tmp/ray
cat {key}.pub > root/.ssh/authorized_keys
cat {key} > root/.ssh/id_ed25519
chmod 700 root/.ssh
chmod 600 root/.ssh/*
printf '127.0.0.1 localhost\\n{address} {name}\\n' > etc/hosts
: > etc/resolv.conf
for shared in {shared}; do mkdir -p ./$shared; mount --bind $shared ./$shared; done
hostname {name}
ip link set lo up
exec chroot . $(command -v sshd) -D -e -o UsePAM=no -o UseDNS=no -o PasswordAuthentication=no \\
  -o PermitRootLogin=prohibit-password -o PidFile=none -o MaxStartups=100
"""


def missing() -> str | None:
    """Why there can be no such hosts here; None when there can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces and mounts"
    lacking = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"needs {', '.join(lacking)}: apt-get install openssh-server rsync iproute2" if lacking else None


@dataclass
class Hosts:
    """Hosts that are up. folder: for their files; it must not be seen by others."""

    folder: Path
    shared: Sequence[Path]
    pids: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    _unshares: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def key(self) -> Path:
        """The private key with which root of any host enters any other."""
        return self.folder / "key"

    def add(self, name: str, address: str) -> None:
        """A host of that name and IPv4 address, in the first one's /24 network."""
        own = self.folder / name
        own.mkdir()
        if not self.key.exists():
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.key)], check=True)
        (own / "init.sh").write_text(
            _INIT.format(
                folder=own / "disk", name=name, address=address, key=self.key, shared=" ".join(map(str, self.shared))
            ),
            encoding="utf-8",
        )
        (own / "disk").mkdir()
        spaces = ["--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child"]
        with (own / "log").open("wb") as log:
            above = subprocess.Popen(
                ["unshare", *spaces, "bash", str(own / "init.sh")], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )
        self._unshares.append(above)
        self.pids[name] = self._await_sshd(above, own / "log")
        self.addresses[name] = address
        self._connect(name)

    def run(
        self, host: str, *words: str, deadline_s: float, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root of a host."""
        return subprocess.run(
            [*self._inside(host), *words],
            capture_output=True,
            text=True,
            timeout=deadline_s,
            env=self._environment(variables),
            check=False,
        )

    @contextmanager
    def running(self, host: str, *words: str, variables: Mapping[str, str] | None = None) -> Iterator[None]:
        """A command as root of a host for the duration; it is ended as by Ctrl-C, all its processes with it."""
        process = subprocess.Popen(
            [*self._inside(host), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self._environment(variables),
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(process.pid, signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)

    def processes(self, host: str) -> list[str]:
        """Command lines of all processes of a host but its sshd."""
        ran = self.run(host, "ps", "-eo", "pid=,args=", deadline_s=20)
        lines = [line.strip() for line in ran.stdout.splitlines()]
        return [line for line in lines if "sshd" not in line and "ps -eo" not in line]

    def close(self) -> None:
        """End all hosts with everything on them."""
        for pid in self.pids.values():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for above in self._unshares:
            above.kill()
            above.wait(timeout=20)

    def _inside(self, host: str) -> list[str]:
        return ["nsenter", "-t", str(self.pids[host]), "-n", "-m", "-p", "-u", "-i", "--root", "--wdns=/root", "--"]

    def _environment(self, variables: Mapping[str, str] | None) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": "/root", "LANG": "C.UTF-8", **(variables or {})}

    def _await_sshd(self, above: subprocess.Popen[bytes], log: Path) -> int:
        deadline_t = time.monotonic() + _START_S
        while time.monotonic() < deadline_t and above.poll() is None:
            for child in psutil.Process(above.pid).children():
                if "sshd" in " ".join(child.cmdline()[:1]):
                    return child.pid
            time.sleep(0.05)
        above.kill()
        raise RuntimeError(f"no sshd came up: {log.read_text(encoding='utf-8')}")

    def _connect(self, name: str) -> None:
        first = next(iter(self.pids))
        there, here = (
            ["nsenter", "-t", str(self.pids[first]), "-n", "ip"],
            ["nsenter", "-t", str(self.pids[name]), "-n", "ip"],
        )
        if name == first:
            commands = [
                [*there, "link", "add", "br0", "type", "bridge"],
                [*there, "addr", "add", f"{self.addresses[name]}/24", "dev", "br0"],
                [*there, "link", "set", "br0", "up"],
            ]
        else:
            peer = ["peer", "name", "eth0", "netns", str(self.pids[name])]
            commands = [
                [*there, "link", "add", f"v{name}", "type", "veth", *peer],
                [*there, "link", "set", f"v{name}", "master", "br0", "up"],
                [*here, "addr", "add", f"{self.addresses[name]}/24", "dev", "eth0"],
                [*here, "link", "set", "eth0", "up"],
            ]
        for command in commands:
            subprocess.run(command, check=True, capture_output=True, timeout=20)


@contextmanager
def hosts(addresses: Mapping[str, str], *, folder: Path, shared: Sequence[Path]) -> Iterator[Hosts]:
    """Hosts by name and address, up for the duration."""
    found = Hosts(folder=folder, shared=shared)
    try:
        for name, address in addresses.items():
            found.add(name, address)
        yield found
    finally:
        found.close()
