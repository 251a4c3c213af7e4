"""Hosts of their own on one machine: a network namespace each, joined to this one by a cable that can be pulled.

It needs root and the programs ip and iptables; `reason_not` says what is missing.
"""

import os
import shutil
import subprocess
from dataclasses import dataclass

NETWORK = "198.18.41"
"""Of the range that is set aside for tests of network devices."""


def reason_not() -> str:
    """Why there can be no namespaces here; "" when there can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [program for program in ("ip", "iptables") if shutil.which(program) is None]
    if missing:
        return f"needs {' and '.join(missing)}"
    name = f"chaos-{os.getpid()}-try"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode != 0:
        return "network namespaces are not allowed here"
    tried = subprocess.run(["ip", "netns", "exec", name, "iptables", "-L"], capture_output=True).returncode
    subprocess.run(["ip", "netns", "del", name], capture_output=True)
    return "" if tried == 0 else "iptables does not work in a namespace here"


@dataclass(slots=True)
class Host:
    """One host.

    Attributes:
        number: 1 to 60; ours and its address follow from it.
    """

    number: int

    @property
    def name(self) -> str:
        return f"chaos-{os.getpid()}-{self.number}"

    @property
    def gateway(self) -> str:
        """This machine's address, as the host sees it."""
        return f"{NETWORK}.{4 * self.number + 1}"

    @property
    def prefix(self) -> tuple[str, ...]:
        """Words before a command that shall run there."""
        return ("ip", "netns", "exec", self.name)

    def up(self) -> "Host":
        """Make it."""
        ours, theirs = self._cable()
        _run("ip", "netns", "add", self.name)
        _run("ip", "link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", self.name)
        _run("ip", "addr", "add", f"{self.gateway}/30", "dev", ours)
        _run("ip", "link", "set", ours, "up")
        _run("ip", "-n", self.name, "addr", "add", f"{NETWORK}.{4 * self.number + 2}/30", "dev", theirs)
        _run("ip", "-n", self.name, "link", "set", theirs, "up")
        _run("ip", "-n", self.name, "link", "set", "lo", "up")
        return self

    def down(self) -> None:
        """Take it away, and its cable with it."""
        subprocess.run(["ip", "link", "del", self._cable()[0]], capture_output=True)
        subprocess.run(["ip", "netns", "del", self.name], capture_output=True)

    def hurt(self, deed: str) -> None:
        """cut: the cable is pulled; deaf: what is sent to it is lost; mute: what it sends is lost."""
        if deed == "cut":
            _run("ip", "link", "set", self._cable()[0], "down")
        else:
            chain = "INPUT" if deed == "deaf" else "OUTPUT"
            _run(*self.prefix, "iptables", "-A", chain, "-j", "DROP")

    def heal(self) -> None:
        """End whatever was done."""
        _run("ip", "link", "set", self._cable()[0], "up")
        _run(*self.prefix, "iptables", "-F")

    def _cable(self) -> tuple[str, str]:
        """Its two ends: names of devices may have 15 characters."""
        return f"ch{os.getpid() % 100000}x{self.number}", "eth0"


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
