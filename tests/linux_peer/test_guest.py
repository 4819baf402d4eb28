"""The guest itself: commands, sockets both ways, its clock, its link, and that it never outlives who has made it."""

import os
from pathlib import Path
import signal
import subprocess
import sys
import time

import pytest

from host_driver.exchange import Address, as_client
from host_driver.verbs import CQ, GID, MR, PD, QP, QPInitAttr
from sim.linux_peer import (Guest, GuestAddress, GuestListener, GuestSocket, Lab, Op, PeerError, PeerTimeout, VerbsPeer,
                            build_image)
from sim.linux_peer.exchange import Words

from .rig import RIGHTS, ends, retries

pytestmark = pytest.mark.peer


def test_commands(guest):
    assert guest.run("echo one; echo two >&2") == "one\ntwo\n"
    assert guest.run("echo said; exit 3", check=False) == (3, "said\n")
    assert guest.run("kill -9 $$", check=False)[0] == 128 + 9
    with pytest.raises(PeerError, match="status 3: said"):
        guest.run("echo said; exit 3")
    assert len(guest.run("head -c 300000 /dev/zero | tr '\\0' x")) == 300000
    assert "".join(guest.run(f"echo {i}") for i in range(5)) == "0\n1\n2\n3\n4\n"


def test_what_takes_too_long_is_ended(guest):
    with pytest.raises(PeerTimeout, match="not within 0.5 s"):
        guest.run("sleep 1000 & sleep 1001", timeout_s=.5)
    guest.wait_freely(lambda: "sleep 100" not in guest.run("ps"), 5, "the script is gone with what it started")


def test_jobs_in_the_background(guest):
    with guest.start("echo begun; sleep 100; echo never") as job, guest.start("echo other") as other:
        job.wait_for("begun")
        assert other.wait() == 0 and other.output == "other\n"
        assert job.status is None and guest.run("echo at the same time") == "at the same time\n"
        with pytest.raises(PeerError, match="did not say"):
            other.wait_for("something else")


def test_connections(guest):
    with guest.start("nc -l -p 4000 -e cat"):
        guest.wait_freely(lambda: ":0FA0 " in guest.run("cat /proc/net/tcp*"), 5, "it listens")
        with GuestSocket.connect(guest, 4000) as link:
            data = os.urandom(200_000)
            link.sendall(data)
            assert link.recv_exactly(len(data)) == data
            with pytest.raises(PeerTimeout):
                link.settimeout(.05), link.recv(1)
    with GuestListener(guest) as listener, guest.start(f"echo hello | nc 10.0.2.2 {listener.port}"):
        with listener.accept() as link:
            assert link.readline() == "hello"


def test_its_clock_stands_still(guest):
    """What a guest that is stopped can't notice. The control is the same without being stopped."""
    uptime = lambda: float(guest.run("cut -d' ' -f1 /proc/uptime"))
    before = uptime()
    guest.pause()
    time.sleep(1.5)
    stopped = uptime() - before
    time.sleep(1.5)             # the last command has left it running
    free = uptime() - before - stopped
    assert stopped < 1.2 < 1.5 < free + .01


@pytest.mark.parametrize("count, size", [(3000, 1400), (600, 4000)])
def test_the_link_loses_nothing(guest, count, size):
    """As fast as both ends can, and over many turns of the guest."""
    statistic = lambda name: int(guest.run(f"cat /sys/class/net/link0/statistics/{name}"))
    with Lab("model", [guest]) as lab:
        port = lab.network.ports[0]
        sent, before = port.delivered, statistic("tx_packets")
        guest.run(f"flood 10.77.0.1 {count} {size}", timeout_s=60)
        after = statistic("tx_packets")
        lab.world.run_ns(10_000_000)
        assert after - before >= count and port.delivered - sent == after - before
        before = statistic("rx_packets")
        frame = bytes.fromhex(guest.address.mac.replace(":", "") + "020000000001" + "88b5") + bytes(size)
        for _ in range(count):
            lab.network.inject(0, frame, lab.world.now_ps)
        lab.wait(lambda: statistic("rx_packets") - before >= count)
        assert statistic("rx_packets") - before == count


class Slow:
    """A world that takes its time: 10 ms for each step."""

    def __init__(self, world, monkeypatch):
        step = world._step
        monkeypatch.setattr(world, "_step", lambda target: (time.sleep(.01), step(target)))


@pytest.mark.parametrize("kept", [True, False], ids=["in step", "control"])
def test_a_slow_card_is_no_late_card(guest, rng, monkeypatch, kept):
    """An answer takes a hundred times as long as the guest's timeout of 16 ms; only a guest whose clock goes on asks again."""
    with ends("model", guest, rng, mtu=1024, timeout=12) as pair:
        Slow(pair.lab.world, monkeypatch)
        if not kept:
            monkeypatch.setattr(guest, "pause", lambda: None)
            monkeypatch.setattr(guest, "resume", lambda: None)
            guest.__class__.resume(guest)
        traffic = pair.traffic("linux", rng)
        for _ in range(2):
            traffic.make("write", 20_000)
            traffic.run(1)
        if kept:
            assert not retries(pair.changed())
        else:
            assert pair.changed().get("card duplicates")
        monkeypatch.undo()


def test_the_words_of_pingpong(guest):
    """A program in the guest that knows nothing of ours."""
    with guest.start("ibv_rc_pingpong -d rxe0 -g 1 -p 4100 -s 64 -n 1"):
        guest.wait_freely(lambda: ":1004 " in guest.run("cat /proc/net/tcp*"), 5, "it listens")
        with GuestSocket.connect(guest, 4100) as link:
            there = as_client(Words(link), Address(0x123, 0x456, GID("10.77.0.1")))
            assert str(there.gid.ip) == guest.address.ip and there.qpn


@pytest.mark.parametrize("active", [False, True])
def test_who_connects(guest, active):
    with Lab("model", [guest]) as lab:
        pd, cq = PD(lab.cards[0]), CQ(lab.cards[0], 16)
        mr, qp = MR(pd, 4096, RIGHTS), QP(pd, QPInitAttr(scq=cq, rcq=cq))
        with VerbsPeer(guest, active=active) as peer:
            peer.connect(qp, mr)
            peer.load(0, b"words")
            assert peer.run([Op("write", 5, 0, mr.addr + 9)])[0].ok and mr.read(5, 9) == b"words"


def test_two_guests(guest, booted, rng):
    """On a switch with a card, and each with a queue pair of its own to it."""
    with Guest(build_image(), address=GuestAddress(1)) as second, Lab("model", [guest, second]) as lab:
        card = lab.cards[0]
        pd, cq, data = PD(card), CQ(card, 16), [rng.randbytes(3000) for _ in range(2)]
        mr = MR(pd, 1 << 16, RIGHTS)
        qps = [QP(pd, QPInitAttr(scq=cq, rcq=cq)) for _ in range(2)]
        with VerbsPeer(guest) as one, VerbsPeer(second) as two:
            for i, (peer, qp) in enumerate(zip((one, two), qps)):
                peer.connect(qp, mr)
                peer.load(0, data[i])
                peer.begin([Op("write", 3000, 0, mr.addr + 4096 * i)] * 8, depth=4)
            for i, peer in enumerate((one, two)):
                assert [wc.ok for wc in peer.end()] == [True] * 8 and mr.read(3000, 4096 * i) == data[i]


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_no_guest_outlives_its_maker(how):
    """Whatever becomes of the process."""
    program = ("from sim.linux_peer import Guest, build_image\nguest = Guest(build_image())\n"
               "print(guest._process.pid, guest._folder, flush=True)\n"
               + ("import time; time.sleep(600)" if how == "killed" else "1 / 0"))
    maker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        pid, folder = maker.stdout.readline().split()
        command = Path(f"/proc/{pid}/cmdline")
        if how == "killed":
            assert b"qemu-system" in command.read_bytes()
            os.kill(maker.pid, signal.SIGKILL)
        maker.wait(20)
        end = time.monotonic() + 10
        while command.exists() and b"qemu-system" in command.read_bytes():
            assert time.monotonic() < end, "QEMU is still there"
            time.sleep(.05)
        assert how == "killed" or not Path(folder).exists()
    finally:
        maker.kill()
        maker.wait()
