"""What a guest takes of this machine: QEMU to run it, and tools to make its kernel and its file system from packages.

Everything comes from where the machine's own apt takes its packages. Root gets what is missing installed; anybody else is told.
"""

import fcntl
import os
from pathlib import Path
import shutil
import subprocess
import tempfile

from .errors import PeerUnavailable

__all__ = ["need_host_tools", "run_tool", "TOOLS"]

#: command -> Debian package
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "gcc": "gcc", "readelf": "binutils", "strip": "binutils", "cpio": "cpio",
         "zstd": "zstd", "xz": "xz-utils", "depmod": "kmod", "modprobe": "kmod", "setpriv": "util-linux"}
C_LIBRARY = ("/usr/include/stdio.h", "libc6-dev")
LOCK_S = 600            # how long apt-get waits for another one


def run_tool(*command, what, **options):
    """Run a command to its end and return its output; PeerUnavailable with the last line that it said if it fails."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                          **options)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        raise PeerUnavailable(f"{what}: `{command[0]}` ended with status {done.returncode}: {said}")
    return done.stdout


def tool_path():
    """Where administrators' commands are, too: depmod is in /usr/sbin, which is on few users' PATH."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _missing():
    found = {package for command, package in TOOLS.items() if shutil.which(command, path=tool_path()) is None}
    if not Path(C_LIBRARY[0]).exists():
        found.add(C_LIBRARY[1])
    return sorted(found)


def need_host_tools(progress=lambda text: None):
    """Return once every tool is there; otherwise PeerUnavailable says which packages to install."""
    for command in ("apt-get", "dpkg-deb"):
        if shutil.which(command) is None:
            raise PeerUnavailable(f"a Linux peer is made from Debian packages, and this machine has no {command}; use Debian")
    architecture = run_tool("dpkg", "--print-architecture", what="this machine's architecture is unknown").strip()
    if architecture != "amd64":
        raise PeerUnavailable(f"a Linux peer is built on amd64, and this machine's packages are of {architecture}")
    missing = _missing()
    if not missing:
        return
    if os.geteuid() != 0:
        raise PeerUnavailable(f"a Linux peer needs {' '.join(missing)}; install them: sudo apt-get install {' '.join(missing)}")
    progress(f"installing {' '.join(missing)}")
    with open(Path(tempfile.gettempdir()) / "optinic-apt.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)        # another process may be at the same
        if _missing():
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            apt = ("apt-get", "-qq", "-o", f"DPkg::Lock::Timeout={LOCK_S}")
            run_tool(*apt, "update", what="the package lists can't be fetched", env=environment)
            run_tool(*apt, "install", "-y", "--no-install-recommends", *missing, env=environment,
                     what=f"{' '.join(missing)} can't be installed")
    if still := _missing():
        raise PeerUnavailable(f"{' '.join(still)} can't be found although installed; see `apt-get install {' '.join(still)}`")
