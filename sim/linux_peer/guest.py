"""A Linux guest under QEMU: its life, its commands, its two network cards.

The RDMA link is a datagram socket, one Ethernet frame a datagram: `receive_frames`, `send_frames`. The management network is QEMU's
own: the guest finds the host at 10.0.2.2, `forward` makes a port of the guest one of the host's.

A guest runs from `resume` to `pause`, and its clock with it. Somebody has to let it run for anything to happen in it: that is
`patience`, a function (condition, timeout in seconds of the guest, what) that returns once `condition()` is true. The one that a
guest is born with lets it run freely; `sim.linux_peer.lockstep` has the one that keeps step with simulated cards.
"""

import atexit
from dataclasses import dataclass
from pathlib import Path
import select
import shutil
import socket
import subprocess
import tempfile
import time

from host_driver.verbs import GID

from .errors import PeerError, PeerTimeout
from .jobs import Job
from .qmp import Qmp

__all__ = ["Guest", "GuestAddress"]

JOBS_PORT = 7000
MEMORY_MB = 256
FRAME_MAX = 65536
BUFFER_BYTES = 1 << 25  # of frames under way between QEMU and this process
BOOT_S = 120            # of a machine that is busy with other things
ALIVE = set()           # guests that must not outlive this process


@dataclass(frozen=True)
class GuestAddress:
    """Of guest number `n`, from 0: MAC, IPv4 and IPv6 address on the RDMA link."""
    n: int = 0

    @property
    def mac(self):
        return f"02:00:0a:4d:00:{0x65 + self.n:02x}"

    @property
    def ip(self):
        return f"10.77.0.{101 + self.n}"

    @property
    def ip6(self):
        return f"fd77::{0x65 + self.n:x}"


class Guest:
    """Boots an Image; returns when the guest takes commands. `address`: a GuestAddress; `mtu`: of the RDMA link's interface.

    A guest ends with `close`, at the end of a `with`, with this process (also if that is killed), or when the thread that has made
    it ends.
    """

    def __init__(self, image, *, address=GuestAddress(), mtu=4200, boot_s=BOOT_S):
        self.address, self.mtu = address, mtu
        self._folder = Path(tempfile.mkdtemp(prefix="optinic-guest-"))     # a short path: sockets want that
        self._process = self._qmp = self._link = None
        self.running, self.ran_ns, self._since = True, 0, time.monotonic_ns()
        self.patience = self.wait_freely
        ALIVE.add(self)
        try:
            # A pair, and not two named sockets: those take ten datagrams (net.unix.max_dgram_qlen) and no more, and QEMU forgets
            # a frame that it could not get rid of when the guest is stopped.
            self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
            with theirs:
                for end in (self._link, theirs):
                    end.setblocking(False)
                    _enlarge(end)
                self._start(image, theirs)
            self._qmp = Qmp(self._folder / "qmp", 20, self.alive)
            self._jobs_port = self.forward(JOBS_PORT)
            self.patience(lambda: b"guest: takes jobs" in self._log("console"), boot_s, "the guest boots")
        except Exception as error:
            said = self.console()[-1000:] + self._log("qemu").decode(errors="replace")[-500:]
            self.close()
            if isinstance(error, PeerError) and said.strip():
                raise type(error)(f"{error}; it said: {said.strip()}") from None
            raise

    def _start(self, image, link):
        at, who = self._folder, self.address
        kernel = (f"console=ttyS0 quiet panic=-1 optinic.mac={who.mac} optinic.ip={who.ip}/24 optinic.ip6={who.ip6}/64 "
                  f"optinic.mtu={self.mtu}")
        command = [
            # With the parent gone, the guest is no use; this is what QEMU 7 itself has no option for.
            "setpriv", "--pdeathsig", "KILL", "qemu-system-x86_64",
            # No KVM: it is rarely there in a container, and not trusted to stop and go on a thousand times a second.
            "-accel", "tcg,thread=single", "-machine", "q35", "-cpu", "max", "-smp", "1", "-m", str(MEMORY_MB), "-nodefaults",
            "-display", "none", "-no-reboot", "-serial", f"file:{at}/console", "-qmp", f"unix:{at}/qmp,server=on,wait=off",
            "-kernel", str(image.kernel), "-initrd", str(image.initramfs), "-append", kernel,
            "-netdev", f"dgram,id=link,local.type=fd,local.str={link.fileno()}",
            "-device", f"virtio-net-pci,netdev=link,mac={who.mac},rx_queue_size=1024,romfile=",
            "-netdev", "user,id=manage", "-device", "virtio-net-pci,netdev=manage,mac=52:54:00:00:00:02,romfile="]
        with open(at / "qemu", "wb") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                             pass_fds=[link.fileno()])

    # -- life -----------------------------------------------------------------------------------------------

    def alive(self):
        return self._process is not None and self._process.poll() is None

    def _log(self, name):
        path = self._folder / name
        return path.read_bytes() if path.exists() else b""

    def console(self):
        """What the guest's kernel and its first program have said."""
        return self._log("console").decode(errors="replace")

    def close(self):
        """End it, at once; what runs in it is lost. A second call does nothing."""
        ALIVE.discard(self)
        if self._qmp:
            self._qmp.close()
        if self._process and self._process.poll() is None:
            self._process.kill()
        if self._process:
            self._process.wait()
        if self._link:
            self._link.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # -- its clock ------------------------------------------------------------------------------------------

    def pause(self):
        """Stop the guest, its clock with it."""
        if self.running:
            self._qmp.command("stop")
            self.ran_ns += time.monotonic_ns() - self._since
            self.running = False

    def resume(self):
        if not self.running:
            self._since = time.monotonic_ns()
            self._qmp.command("cont")
            self.running = True

    @property
    def clock_ns(self):
        """How long it has run: what its clock has gone forward since its start is this, or a little less."""
        return self.ran_ns + (time.monotonic_ns() - self._since if self.running else 0)

    def wait_freely(self, condition, timeout_s, what):
        """Let it run, at its own pace, until `condition()`."""
        self.resume()
        end = time.monotonic() + timeout_s
        while not condition():
            if not self.alive():
                raise PeerError(f"{what}: QEMU has ended with status {self._process.returncode}")
            if time.monotonic() > end:
                raise PeerTimeout(f"{what}: not within {timeout_s:g} s")
            time.sleep(0.002)

    # -- commands -------------------------------------------------------------------------------------------

    def start(self, script):
        """A :class:`Job`, a shell script that runs in the background until it ends or is killed."""
        return Job(self, script, self._jobs_port)

    def run(self, script, timeout_s=30, check=True):
        """Run a shell script to its end; its output, both streams, as text. If its exit status is not 0, PeerError, or with
        check=False (status, output). PeerTimeout after `timeout_s` seconds of the guest's clock; the script is killed then."""
        with self.start(script) as job:
            status = job.wait(timeout_s)
            if not check:
                return status, job.output
            if status:
                raise PeerError(f"in the guest, {script.strip()!r} ended with status {status}: {job.output.strip()[-500:]}")
            return job.output

    def gid_index(self, ip):
        """The index of the GID of rxe0 that is this IPv4 or IPv6 address."""
        wanted = GID(ip)
        said = self.run("cd /sys/class/infiniband/rxe0/ports/1/gids && grep . *")
        found = [int(index) for index, gid in (line.split(":", 1) for line in said.split()) if GID(gid) == wanted]
        if not found:
            raise PeerError(f"the guest's rxe0 has no GID {ip}")
        return found[0]

    # -- the management network -----------------------------------------------------------------------------

    def forward(self, port):
        """The host's port (of 127.0.0.1) at which TCP port `port` of the guest can be reached from here on."""
        for _ in range(20):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                found = probe.getsockname()[1]
            # It was free a moment ago; if somebody has taken it meanwhile, QEMU says so.
            if not self._qmp.monitor(f"hostfwd_add manage tcp:127.0.0.1:{found}-10.0.2.15:{port}").strip():
                return found
        raise PeerError(f"no port of this machine can be forwarded to port {port} of the guest")

    # -- the RDMA link --------------------------------------------------------------------------------------

    def receive_frames(self):
        """The Ethernet frames that the guest has sent since the last call."""
        found = []
        while True:
            try:
                found.append(self._link.recv(FRAME_MAX))
            except BlockingIOError:
                return found
            except ConnectionError:
                raise PeerError("QEMU has ended") from None

    def send_frame(self, frame):
        """Hand a frame to the guest's card; False if there is no room now (QEMU takes frames only while the guest runs)."""
        try:
            self._link.send(frame)
        except BlockingIOError:
            return False
        except ConnectionError:
            raise PeerError("QEMU has ended") from None
        return True

    def wait_for_frame(self, timeout_s):
        """Return when the guest has sent a frame, or after `timeout_s`."""
        return bool(select.select([self._link], [], [], max(0, timeout_s))[0])


def _enlarge(link):
    """As large a buffer as this process may have."""
    for option in (getattr(socket, "SO_SNDBUFFORCE", 32), socket.SO_SNDBUF):
        try:
            link.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)
            return
        except PermissionError:
            continue


@atexit.register
def _end_all():
    for guest in list(ALIVE):
        guest.close()
