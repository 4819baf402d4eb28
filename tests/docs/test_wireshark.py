"""The dissector in docs/wireshark/, on a capture of what the model cards send: XP has its fields, standard RoCE is as it was."""

from pathlib import Path
import shutil
import subprocess

import pytest

from host_driver.verbs import *

SCRIPT = Path(__file__).resolve().parents[2] / "docs/wireshark/optinic_xp.lua"
ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ
pytestmark = pytest.mark.skipif(shutil.which("tshark") is None, reason="tshark is not installed; apt-get install tshark")


def tshark(path, *args, script=True):
    lua = ("-X", f"lua_script:{SCRIPT}") if script else ()
    done = subprocess.run(["tshark", *lua, "-r", str(path), *args], capture_output=True, text=True)
    assert done.returncode == 0 and "Lua" not in done.stderr, done.stderr
    return done.stdout.splitlines()


def fields(path, *names, only="optinic_xp"):
    """Rows of the fields of those frames that `only` selects."""
    rows = tshark(path, "-Y", only, "-T", "fields", *(word for name in names for word in ("-e", name)))
    return [tuple(row.split("\t")) for row in rows]


class Ends:
    """Two cards, and what a queue pair of each kind needs."""

    def __init__(self, cards):
        self.cards, self.pds, self.cqs = cards, [PD(c) for c in cards], [CQ(c, 64) for c in cards]
        self.mrs = [MR(pd, bytes(range(256)) * 64, ACCESS) for pd in self.pds]

    def connect(self, kind, reads=0, **how):
        a, b = (QP(pd, QPInitAttr(qp_type=kind, scq=cq, rcq=cq, cap=QPCap(max_rd_atomic=reads)))
                for pd, cq in zip(self.pds, self.cqs))
        a.connect(b.info(), **how), b.connect(a.info(), **how)
        for i in range(8):
            b.post_recv(RecvWR(i, sg=[self.mrs[1].sge(0, 8192)]))
        return a, b

    def send(self, qp, opcode, size, at=0, **more):
        remote = {} if opcode in (IBV_WR_SEND, IBV_WR_SEND_WITH_IMM) else {"rkey": self.mrs[1].rkey,
                                                                           "remote_addr": self.mrs[1].addr + at}
        qp.post_send(SendWR(0, opcode, sg=[self.mrs[0].sge(0, size)], **remote, **more))


@pytest.fixture(scope="module")
def capture(tmp_path_factory):
    """(file, info() of the receiving queue pairs, address and key of the memory there)"""
    path = tmp_path_factory.mktemp("pcap") / "x.pcap"
    with open_cards("model", 2, cfg="tiny") as cards:
        cards.network.capture(path, 0)
        ends = Ends(cards)
        uc, xp, six = ends.connect(IBV_QPT_UC), ends.connect(OPT_QPT_XP, reads=2), ends.connect(OPT_QPT_XP, ip6=True, vlan=5)
        ends.send(uc[0], IBV_WR_SEND, 100)
        ends.send(uc[0], IBV_WR_RDMA_WRITE, 1000)
        ends.send(uc[0], IBV_WR_RDMA_WRITE_WITH_IMM, 64, imm_data=77)
        ends.send(xp[0], IBV_WR_SEND, 2500, tag=0x1234)
        ends.send(xp[0], IBV_WR_SEND_WITH_IMM, 101, imm_data=0xCAFEBABE)
        ends.send(xp[0], IBV_WR_RDMA_WRITE, 1030, at=5)
        ends.send(xp[0], IBV_WR_RDMA_WRITE_WITH_IMM, 8, at=9, imm_data=1)
        ends.send(six[0], IBV_WR_SEND, 3)
        cards[0].sleep_ns(100_000)
        ends.send(xp[0], IBV_WR_RDMA_READ, 1500)
        cards[0].sleep_ns(100_000)
        about = xp[1].info(), (ends.mrs[1].addr, ends.mrs[1].rkey)
    return path, *about         # it is whole when the cards are closed


def test_messages(capture):
    path, receiver, (addr, rkey) = capture
    qpn, generation = f"0x{receiver['qp_num']:06x}", receiver["generation"]
    names = ("opcode", "generation", "tracked", "tag", "seq", "msg_len", "offset", "payload_len")
    found = fields(path, *(f"optinic_xp.{name}" for name in names), only=f"optinic_xp.qpn == {qpn}")
    head = lambda opcode, tracked: (opcode, str(generation), tracked)
    assert found == [
        *((*head("0xe4", "1"), "0x1234", "0", "2500", str(at), str(min(1024, 2500 - at))) for at in (0, 1024, 2048)),
        (*head("0xe5", "1"), "0x0000", "1", "101", "0", "101"),
        *((*head("0xea", "0"), "0x0000", "0", "1030", str(at), str(min(1024, 1030 - at))) for at in (0, 1024)),
        (*head("0xeb", "1"), "0x0000", "2", "8", "0", "8")]
    assert fields(path, "optinic_xp.imm", only="optinic_xp.opcode == 0xe5") == [("0xcafebabe",)]
    assert fields(path, "optinic_xp.va", "optinic_xp.rkey", "optinic_xp.dma_len", only="optinic_xp.opcode == 0xea") == [
        (f"0x{addr + 5:016x}", f"0x{rkey:08x}", "1024"), (f"0x{addr + 1029:016x}", f"0x{rkey:08x}", "6")]
    payload, = fields(path, "optinic_xp.payload", only="optinic_xp.opcode == 0xeb")
    assert bytes.fromhex(payload[0].replace(":", "")) == bytes(range(8))


def test_read_and_other_ways(capture):
    path, _, _ = capture
    request, = fields(path, "optinic_xp.msg_len", "optinic_xp.dma_len", "optinic_xp.payload_len", only="optinic_xp.opcode == 0xec")
    assert request == ("1500", "1500", "0")
    answers = fields(path, "optinic_xp.offset", "optinic_xp.payload_len", only="optinic_xp.opcode == 0xf0")
    assert answers == [("0", "1024"), ("1024", "476")]
    one, = fields(path, "optinic_xp.pad_count", "optinic_xp.payload_len", "vlan.id", only="optinic_xp && ipv6")
    assert one == ("1", "3", "5")


def test_standard_packets_are_as_without_it(capture):
    path, _, _ = capture
    uc = "infiniband.bth.opcode <= 0x3f"
    with_it, without = ([line for line in tshark(path, "-Y", uc, "-V", script=script) if "[Protocols in frame" not in line]
                        for script in (True, False))
    assert len(tshark(path, "-Y", uc)) == 3 and with_it == without


def test_no_marks_of_errors(capture):
    path, _, _ = capture
    # Over IPv6 the UDP checksum is 0 too, as RoCEv2 has it, and Wireshark remarks on that.
    assert tshark(path, "-Y", "_ws.malformed || _ws.expert && ip") == []
    said = "\n".join(tshark(path))
    assert "XP SEND QP=" in said and "message 0, bytes 1024 to 2048 of 2500" in said and "Unknown" not in said


def test_what_is_wrong_is_marked(tmp_path):
    """Negative control: packets that no card sends."""
    from sim.frames import build, xp_header, xp_send, xp_write
    from sim.network.pcap import Capture
    with Capture(tmp_path / "x.pcap") as out:
        for i, frame in enumerate((xp_send(5, bytes(100)), xp_send(5, bytes(100), msg_len=50),
                                   xp_write(5, bytes(64), 0x1000, 7, dma_len=60), build(0xE7, 5, headers=bytes(16)),
                                   build(0xE4, 5, headers=bytes(4)))):
            out.record(i * 1000, frame)
    marks = ("optinic_xp.beyond", "optinic_xp.dma_len.wrong", "optinic_xp.opcode.unknown", "optinic_xp.short")
    assert [fields(tmp_path / "x.pcap", "frame.number", only=mark) for mark in marks] == [[("2",)], [("3",)], [("4",)], [("5",)]]
