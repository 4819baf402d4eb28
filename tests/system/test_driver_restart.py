"""A driver that died and came back on a card that went on running: nothing stale is used, nothing is wedged."""

import pytest

from host_driver.card import Card, CommandError
from optinic.abi.registers import COMMANDS, NUM_ARGS
from .rig import CFG, Rig

pytestmark = pytest.mark.rtl


@pytest.fixture
def rig(seed):
    with Rig(seed=seed) as rig:
        yield rig


def stale(rig, qpns):
    """What a driver leaves that died in the middle of its work: QPs of both types with posted receives, open messages, running
    deadlines, an armed CQ, a log, regions in many slots, completions that nobody polled, and senders that don't know."""
    for qpn in qpns:
        rig.qp(qpn, "uc" if qpn % 3 == 0 else "xp", generation=5)
        rig.post(qpn, 10, timeout_ns=200_000 if qpn % 2 else None)
    for key in range(0x9000, 0x9010):
        rig.card.add_region(key, key << 20, 4096, 3, pd=1, delta=-(key << 20) + rig.memory[qpns[0]])
    rig.card.log_refusals(7)
    rig.card.arm(0)
    frames = []
    for qpn in qpns:
        frames += [rig.message(qpn, 0, b"1" * 50), rig.message(qpn, 2, b"2" * 60, msg_len=100) if qpn % 3 else rig.write(qpn, b"w")]
    return frames


@pytest.mark.parametrize("traffic", [False, True], ids=["quiet", "senders-go-on"])
def test_comes_back_and_tears_down(rig, rng, traffic):
    old = range(1, 13)
    frames = stale(rig, old)
    rig.exchange(*frames)
    assert rig.card.counter("frames_placed") >= len(old)
    if traffic:     # queued now, and arriving during everything below
        rig.send(*frames * 30)
    card = Card(rig.dev, CFG)
    card.tear_down()
    before = {qpn: rig.window(qpn) for qpn in old}
    rings = rig.dev.read(rig.card._cqs[0].addr, 32 * 64)
    card.enable(hold=True)
    rig.settle(), rig.verdicts()
    assert set(rig.exchange(*frames)) == {"qpn"}
    rig.dev.run(250_000 // 8)       # past every old deadline
    rig.settle()
    assert {qpn: rig.window(qpn) for qpn in old} == before and rig.dev.read(rig.card._cqs[0].addr, 32 * 64) == rings
    # the new driver at work, also with the numbers of the old one's QPs and keys
    rig.bring_up()
    for qpn in old:
        rig.qp(qpn, "xp" if qpn % 3 == 0 else "uc", generation=6)
    if traffic:
        rig.send(*frames * 3)
    for qpn in old:
        rig.works(qpn, rng)
    assert rig.dev.faults == []


def test_takes_over_without_tearing_down(rig, rng):
    """Each thing is replaced as the new driver sets it; what it doesn't touch stays harmless to it."""
    frames = stale(rig, range(1, 9))
    rig.exchange(*frames)
    rig.bring_up()
    for qpn in (2, 3, 9):
        rig.qp(qpn, generation=6)
        rig.send(*frames * 2)
        rig.works(qpn, rng)
    assert set(rig.exchange(*frames)) <= {"generation", "opcode", "late", "no_receive", "placed", "rkey", "pd"}
    assert rig.exchange(rig.message(2, 3, b"n")) == ["no_receive"]


def test_stray_destroys_and_bells(rig, rng):
    """Destroying or flushing what doesn't exist, over and over and between traffic; bells of QPs and CQs that aren't there."""
    rig.qp(1), rig.qp(2, "uc")
    for round in range(3):
        for qpn in (5, 9, 5, 15, 0):
            rig.card.command("qp_destroy", qpn)
            with pytest.raises(CommandError, match="no_qp"):
                rig.card.command("qp_flush", qpn, 3, 0, 0, 0)
        for bell in (0x5_0003, 0xF_FFFF, 0x10_0001, 0xFFFF_FFFF, 0x7FFF_0000):
            rig.card.reg_write("RQ_DOORBELL", bell)
        for bell in (5 << 16, 0x8007_0001, 0xFFFF_FFFF, 0x7FFF_FFFF):
            rig.card.reg_write("CQ_DOORBELL", bell)
        rig.card.command("region_set", 3, 0, 0, 0, 0, 0, 0, 0, 0)
        rig.card.fence()
        assert rig.card.poll(0) == []
        rig.works(1, rng), rig.works(2, rng)
    rig.qp(5)
    rig.works(5, rng)


def test_a_flush_of_a_qp_that_is_not_there(rig, rng):
    """Never made, or destroyed: it is refused, so that what a stray bell had claimed to be posted doesn't complete, in no life."""
    rig.qp(3), rig.post(3, 2)
    rig.card.destroy_qp(3)
    for qpn in (3, 6):
        rig.card.reg_write("RQ_DOORBELL", qpn << 16 | 40)
        with pytest.raises(CommandError, match="qp_flush was refused: no_qp"):
            rig.card.command("qp_flush", qpn, 3, 0, 0, 0)
    assert rig.exchange(rig.write(3, b"w")) == ["qpn"]
    assert rig.card.poll(0) == [] and rig.card.counter("completions") == 0
    for qpn in (3, 6):
        rig.qp(qpn, generation=1)
        assert rig.exchange(rig.message(qpn, 0, b"early")) == ["no_receive"]
        rig.works(qpn, rng)
        rig.card.flush_qp(qpn)
        assert rig.card.poll(0) == []


def test_bad_arguments_are_refused_and_change_nothing(rig, rng):
    """Every command with indices that are out of range, beyond 24 bits, or all ones; every command number that there isn't."""
    rig.qp(1), rig.qp(2, "uc")
    cases = [("qp_set", 1 << 24 | 1, 2, 0, 0, 0), ("qp_destroy", 0xFFFF_FFFF), ("qp_flush", 1 << 31 | 1, 3),
             ("region_set", CFG.num_regions // 2), ("region_set", 1 << 31 | CFG.num_regions), ("region_set", 0xFFFF_FFFF),
             ("peer_set", CFG.num_peers), ("peer_set", 0xFFFF_FFFF), ("cq_set", CFG.num_cqs), ("cq_set", 1 << 31)]
    for _ in range(3):
        for name, *args in cases:
            for i in range(NUM_ARGS):
                rig.card.reg_write(f"ARG{i}", 0xFFFF_FFFF)
            with pytest.raises(CommandError, match="bad_index"):
                rig.card.command(name, *args)
        known = {number for number, _ in COMMANDS.values()}
        for number in (0, *(n for n in range(1, 12) if n not in known), 0xFF, 0x100 + max(known), 0xFFFF_FFFF):
            if number & 0xFF in known:
                continue
            rig.card.reg_write("COMMAND", number)
            rig.dev.run(100)
            assert rig.card.reg_read("COMMAND_STATUS") >> 31 == 0 and rig.card.reg_read("COMMAND_STATUS") & 0xFF
        rig.works(1, rng), rig.works(2, rng)


def test_a_command_during_a_command_is_ignored(rig, rng):
    rig.qp(1), rig.qp(2)
    rig.dev.set(write_latency=400)
    rig.send(rig.write(1, bytes(200)))
    rig.dev.run(60)
    rig.card.reg_write("ARG0", 3)
    rig.card.reg_write("COMMAND", COMMANDS["fence"][0])
    rig.card.reg_write("COMMAND", COMMANDS["cq_set"][0])        # would take CQ 3 away, if it were not ignored
    assert rig.card.reg_read("COMMAND_STATUS") >> 31
    rig.card.fence()
    rig.dev.set(write_latency=20)
    rig.works(1, rng), rig.works(2, rng)
