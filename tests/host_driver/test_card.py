"""The control layer against a card made of Python: registers, commands and a completion writer, no datapath."""

import pytest

from host_driver.card import Card, CardError, CommandError, Completion, QueueFull
from host_driver.work_requests import receive_wqe, time_ticks, timeout_ticks
from optinic.abi.registers import ABI_VERSION, ARG_BASE, COMMANDS, ID_WORD, NUM_ARGS, offset_of
from optinic.abi.structs import CAUSE, CQE, OPCODE, RECV_WQE, STATUS
from optinic.abi.regions import region_row
from optinic.abi.verdicts import REASON
from optinic.config import preset

CFG = preset("tiny", rq_entries=32, sq_entries=16)


class FakeDevice:
    def __init__(self, cfg=CFG, **registers):
        self.memory, self.next, self.time = {}, 0x1000_0000, 0
        self.regs = {offset_of(n): v for n, v in {
            "ID": ID_WORD, "VERSION": ABI_VERSION, "TRANSPORT": 1, "CONFIG_HASH": cfg.hash, "DATA_WIDTH": cfg.data_width,
            "NUM_QPS": cfg.num_qps, "NUM_REGIONS": cfg.num_regions, "NUM_CQS": cfg.num_cqs, "NUM_PEERS": cfg.num_peers,
            "CLOCK_HZ": cfg.clock_hz, "MTU_MAX": cfg.mtu_max, "RQ_ENTRIES": cfg.rq_entries, "SQ_ENTRIES": cfg.sq_entries,
            "FEATURES": 0b00111, "NUM_VECTORS": cfg.num_vectors, "STATUS": 1, "COMMAND_STATUS": 0, **registers}.items()}
        self.writes, self.commands, self.cqs, self.produced, self.busy, self.error = [], [], {}, {}, 0, 0

    def reg_read(self, offset):
        if offset == offset_of("COMMAND_STATUS"):
            self.busy = max(0, self.busy - 1)
            return (self.busy > 0) << 31 | self.error
        return self.regs.get(offset, 0)

    def reg_write(self, offset, value):
        assert 0 <= value < 1 << 32
        self.writes.append((offset, value))
        self.regs[offset] = value
        if offset == offset_of("COMMAND"):
            name = next(n for n, (code, _) in COMMANDS.items() if code == value)
            args = [self.regs.get(ARG_BASE + 4 * i, 0) for i in range(NUM_ARGS)]
            self.commands.append((name, *args))
            self.busy = 3
            if name == "cq_set":
                self.cqs[args[0]] = (args[2] << 32 | args[1], 1 << (args[3] & 0xFF))
                self.produced[args[0]] = 0

    def alloc(self, length, align):
        addr = -(-self.next // align) * align
        self.next = addr + length
        return addr

    def read(self, addr, n):
        return bytes(self.memory.get(addr + i, 0) for i in range(n))

    def write(self, addr, data):
        self.memory.update(enumerate(data, addr))

    def run(self, cycles):
        self.time += cycles

    def complete(self, cq, **fields):
        addr, entries = self.cqs[cq]
        n = self.produced[cq]
        self.produced[cq] += 1
        self.write(addr + n % entries * 32, CQE.pack(format=1, phase=1 - n // entries % 2, **fields))

    def last(self, name):
        return [v for offset, v in self.writes if offset == offset_of(name)][-1]


@pytest.fixture
def dev():
    return FakeDevice()


@pytest.fixture
def card(dev):
    card = Card(dev, CFG)
    card.set_cq(2, entries=4)
    card.create_qp(5, cq=2, peer=1, pd=3, generation=7, mtu=512)
    return card


def test_a_wrong_card_is_named():
    with pytest.raises(CardError, match="ID reads 0xdeadbeef"):
        Card(FakeDevice(ID=0xDEADBEEF))
    with pytest.raises(CardError, match="interface is version 2.3, this driver's is 1.0"):
        Card(FakeDevice(VERSION=0x20003))
    with pytest.raises(CardError, match="another configuration"):
        Card(FakeDevice(), preset("small"))
    with pytest.raises(CardError, match="hangs: waited for the tables"):
        Card(FakeDevice(STATUS=0))


def test_bring_up(card, dev):
    assert card.num_qps == 16 and card.features == {"ipv6", "vlan", "uc"} and card.transport == "xp"
    assert card.rq_base % 4096 == 0 and dev.last("RQ_BASE_LO") == card.rq_base & 0xFFFFFFFF
    assert dev.commands[1][:6] == ("qp_set", 5, 2 | 2 << 8 | 7 << 16, 3, 1, 2)
    assert card.sq_base % 4096 == 0 and dev.last("SQ_BASE_LO") == card.sq_base & 0xFFFFFFFF
    assert card.sq_base >= card.rq_base + 16 * 32 * 32 and card.congestion == "none"
    card.enable(hold=True)
    assert dev.last("CTRL") == 7
    card.enable(tx=False)
    assert dev.last("CTRL") == 1
    card.disable()
    assert dev.last("CTRL") == 0


def test_posting_fills_the_ring_once_and_says_so(card, dev):
    for i in range(32):
        assert card.post_receive(5, 0x1000 * i, 100 + i, 77, timeout_ns=65 if i else None, wr_id=i) == i
    before = dict(dev.memory)
    with pytest.raises(QueueFull):
        card.post_receive(5, 1, 1, 1)
    assert dev.memory == before and dev.last("RQ_DOORBELL") == 5 << 16 | 32 and card.outstanding(5) == 32
    wqe = RECV_WQE.unpack(dev.read(card.rq_base + (5 * 32 + 31) * 32, 32))
    assert wqe == dict(va=0x1F000, length=131, lkey=77, timeout=2, absolute=0)
    dev.complete(2, qpn=5, wqe_index=0, opcode=1, byte_len=9, msg_len=9, time=123)
    assert card.poll(2) == [Completion(5, 0, "send", "success", "complete", 9, 9, time_ns=123, wr_id=0)]
    assert card.post_receive(5, 0xAB, 1, 1, timeout_ns=1000, absolute=True) == 32
    wqe = RECV_WQE.unpack(dev.read(card.rq_base + 5 * 32 * 32, 32))
    assert wqe["va"] == 0xAB and wqe["timeout"] == 16 and wqe["absolute"] == 1


def test_timeouts(card):
    assert timeout_ticks(1) == 1 and timeout_ticks(64) == 1 and timeout_ticks(65) == 2
    assert time_ticks(64 << 32) == 0 and time_ticks((64 << 32) + 640) == 10
    wqe = lambda **more: RECV_WQE.unpack(receive_wqe(0, 1, 1, **more))
    assert (wqe()["timeout"], wqe(timeout_ns=64 << 32, absolute=True)["timeout"]) == (0, 1)      # 0 would be none
    assert not wqe(absolute=True)["absolute"]
    for bad in (0, -5, 64 << 31):
        with pytest.raises(ValueError, match="timeout_ns"):
            card.post_receive(5, 0, 1, 1, timeout_ns=bad)
    assert card.outstanding(5) == 0


def test_polling_over_many_laps(card, dev, rng):
    sent = got = 0
    while got < 100:
        while card.outstanding(5) < 32:
            card.post_receive(5, 0, 8, 1, wr_id=got + card.outstanding(5))
        for _ in range(rng.randrange(5)):
            if sent - got < 4:
                dev.complete(2, qpn=5, wqe_index=sent, opcode=3, imm=sent, byte_len=8, msg_len=8)
                sent += 1
        for c in card.poll(2, limit=rng.choice([None, 1, 2])):
            assert (c.index, c.imm, c.wr_id, c.opcode) == (got, got, got, "write_imm")
            got += 1
        assert dev.regs.get(offset_of("CQ_DOORBELL"), 2 << 16) == 2 << 16 | got
    assert dev.produced[2] > 2 * 2 * 4     # laps


@pytest.mark.parametrize("status, cause", [("partial", "preempted"), ("error", "flushed")])
def test_a_run_of_empty_receives(card, dev, status, cause):
    for i in range(6):
        card.post_receive(5, 0, 8, 1, wr_id=i)
    ended = dict(status=STATUS[status], cause=CAUSE[cause])
    dev.complete(2, qpn=5, wqe_index=0, opcode=1, byte_len=3, msg_len=8, **ended)
    dev.complete(2, qpn=5, wqe_index=4, skipped=3, time=9, **ended)
    found = card.poll(2)
    assert [(c.index, c.wr_id, c.byte_len, c.opcode) for c in found] == [
        (0, 0, 3, "send"), *((i, i, 0, "none") for i in range(1, 5))]
    assert {(c.status, c.cause) for c in found} == {(status, cause)} and {c.time_ns for c in found[1:]} == {9}
    assert card.outstanding(5) == 1


def test_a_completion_out_of_turn_is_an_error(card, dev):
    dev.complete(2, qpn=5, wqe_index=0)
    with pytest.raises(CardError, match="none was posted"):
        card.poll(2)
    card.create_qp(5, cq=2)
    card.post_receive(5, 0, 8, 1)
    dev.complete(2, qpn=5, wqe_index=1)
    with pytest.raises(CardError, match="completion of receive 1, where 0 was due.*start a new one"):
        card.poll(2)


def test_what_cannot_be_is_of_one_queue_pair_and_one_life(card, dev):
    """The others' completions in the same ring are kept, what else is said of that life is not believed, and a new one is as any."""
    card.create_qp(6, cq=2)
    for qpn in (5, 6):
        card.post_receive(qpn, 0, 8, 1, wr_id=qpn)
    dev.complete(2, qpn=5, wqe_index=70000)
    dev.complete(2, qpn=6, wqe_index=0, byte_len=8, msg_len=8)
    dev.complete(2, qpn=5, wqe_index=0, byte_len=8, msg_len=8)
    with pytest.raises(CardError, match="QP 0x5: completion of receive 70000, where 0 was due"):
        card.poll(2)
    assert [c.wr_id for c in card.poll(2)] == [6] and card.outstanding(5) == 1
    assert "70000" in card.contradiction(5) and card.contradiction(6) is None
    card.create_qp(5, cq=2)
    card.post_receive(5, 0, 8, 1, wr_id="new")
    dev.complete(2, qpn=5, wqe_index=0, byte_len=8, msg_len=8)
    assert [c.wr_id for c in card.poll(2)] == ["new"] and card.contradiction(5) is None


def test_a_completion_of_nobody_is_the_trouble_of_who_has_the_row(card, dev):
    card.post_receive(5, 0, 8, 1)
    dev.complete(2, qpn=5 + card.qp_rows, wqe_index=0)
    with pytest.raises(CardError, match=f"QP 0x5: .* is of QP {5 + card.qp_rows:#x}"):
        card.poll(2)
    dev.complete(2, qpn=7, wqe_index=0)         # of a QP that has been: nobody's
    assert [c.qpn for c in card.poll(2)] == [7]


def test_a_life_can_end_whatever_was_said_of_it(card, dev):
    card.post_receive(5, 0, 8, 1)
    dev.complete(2, qpn=5, wqe_index=9)
    card.create_qp(5, cq=2)
    assert card.poll(2) == [] and card.outstanding(5) == 0


def test_a_new_life_keeps_the_completions_of_the_old(card, dev):
    card.post_receive(5, 0, 8, 1, wr_id="old")
    dev.complete(2, qpn=5, wqe_index=0, byte_len=8, msg_len=8)
    card.create_qp(5, cq=2)
    assert card.post_receive(5, 0, 8, 1, wr_id="new") == 0
    dev.complete(2, qpn=5, wqe_index=0, byte_len=1, msg_len=1)
    assert [c.wr_id for c in card.poll(2)] == ["old", "new"]
    card.destroy_qp(5)
    with pytest.raises(CardError, match="no QP 0x5"):
        card.post_receive(5, 0, 8, 1)


def test_flush_and_its_state(card, dev):
    card.flush_qp(5)
    assert dev.commands[-1][:6] == ("qp_flush", 5, 3 | 2 << 8 | 7 << 16, 3, 1, 2) and dev.commands[-1][10] == 2
    with pytest.raises(CardError, match="state error"):
        card.post_receive(5, 0, 8, 1)


def test_regions_are_written_where_they_hash(card, dev, rng):
    keys = rng.sample(range(1 << 32), 24)
    for i, key in enumerate(keys):
        card.add_region(key, i << 40, 1 << 33, ("local_write", "remote_write"), pd=9, delta=-(i << 40))
    table = {}
    for name, slot, key, *rest in dev.commands:
        if name == "region_set":
            table[slot] = (key, *rest)
    for i, key in enumerate(keys):
        here = [s for s, entry in table.items() if entry[0] == key and entry[7] >> 31]
        assert here and all(region_row(s >> 31, key, 16) == s & 0x7FFFFFFF for s in here)
        assert table[here[0]][1:8] == (0, i << 8, 0, 2, 0, -(i << 8) % (1 << 32), 9 | 3 << 16 | 1 << 31)
    card.remove_region(keys[0])
    assert dev.commands[-1][0] == "region_set" and dev.commands[-1][9] == 0
    with pytest.raises(ValueError, match="unknown access 'remote_wrote'"):
        card.add_region(1, 0, 1, ("remote_wrote",))
    with pytest.raises(ValueError, match="leaves the 64-bit address space"):
        card.add_region(1, (1 << 64) - 1, 2, 1)


def test_peers(card, dev):
    card.set_peer(3, "10.0.0.2")
    assert dev.commands[-1][:7] == ("peer_set", 3, 0x0A000002, 0, 0, 0, 0)
    card.set_peer(4, "fd00::1", mac="02:34:56:78:9a:bc", vlan=0x6123)
    assert dev.commands[-1][:10] == ("peer_set", 4, 1, 0, 0, 0xFD000000, 1, 0x56789ABC, 0x0234, 0x16123)
    for bad in ("02:00:00:00:00", "02:00:00:00:00:gg", b"12345", 1 << 48):
        with pytest.raises(ValueError, match="MAC"):
            card.set_peer(4, "10.0.0.1", mac=bad)
    with pytest.raises(ValueError, match="vlan=65536"):
        card.set_peer(4, "10.0.0.1", vlan=1 << 16)


def test_local_addresses(card, dev):
    card.set_local("02:34:56:78:9a:bc", "10.1.2.3", "fd00::2:0:1")
    assert [dev.last(name) for name in ("LOCAL_MAC_LO", "LOCAL_MAC_HI", "LOCAL_IP4", *(f"LOCAL_IP6_{i}" for i in range(4)))] == [
        0x56789ABC, 0x0234, 0x0A010203, 1, 2, 0, 0xFD000000]


def test_refused_commands_and_arguments(card, dev):
    dev.error = 2
    with pytest.raises(CommandError, match="peer_set was refused: bad_index"):
        card.set_peer(99, "10.0.0.2")
    dev.error = 0
    for bad, said in ((dict(mtu=4096), "mtu=4096 is not one of 256, 512, 1024"), (dict(type="rc"), "type='rc'"),
                      (dict(generation=256), "8 bits")):
        with pytest.raises(ValueError, match=said):
            card.create_qp(6, **bad)
    with pytest.raises(CardError, match="shares the table row 5"):
        card.create_qp(21)
    with pytest.raises(ValueError, match="power of two"):
        card.set_cq(1, entries=3)
    with pytest.raises(ValueError, match="vector=1: the card has 1"):
        card.set_cq(1, vector=1)


def test_a_card_that_hangs_in_a_command(card, dev):
    dev.busy = 1 << 40
    dev.reg_write = lambda offset, value: None
    with pytest.raises(CardError, match="hangs: waited for the end of fence"):
        card.fence()


def test_time_and_counters(card, dev):
    dev.regs[offset_of("TIME_LO")], dev.regs[offset_of("TIME_HI")] = 5, 2
    assert card.time_ns() == (2 << 32) + 5
    card.set_time(0x1_2345_6789)
    assert dev.writes[-2:] == [(offset_of("TIME_SET_LO"), 0x23456789), (offset_of("TIME_SET_HI"), 1)]
    dev.regs[offset_of("drop_icrc")], dev.regs[offset_of("drop_icrc") + 4] = 4, 1
    assert card.counters()["drop_icrc"] == (1 << 32) + 4 and card.counters()["frames_placed"] == 0


def refuse(dev, qpn, reason, times=1):
    for _ in range(times):
        dev.complete(6, qpn=qpn, opcode=OPCODE["refusal"], status=STATUS["error"], imm=REASON[reason])


def test_refusals_are_counted_by_queue_pair_and_reason(card, dev):
    with pytest.raises(CardError, match="log_refusals"):
        card.refusals()
    assert dev.last("REFUSAL_LOG") == 0         # off from the beginning
    card.log_refusals(6, entries=8)
    assert dev.last("REFUSAL_LOG") == 1 << 31 | 6
    assert dev.commands[-1][:2] == ("cq_set", 6) and dev.commands[-1][4] == 3 | 1 << 31
    # the queue stands before the card is told to use it
    order = [offset for offset, value in dev.writes if offset == offset_of("COMMAND") or (offset, value) == (
        offset_of("REFUSAL_LOG"), 1 << 31 | 6)]
    assert order[-1] == offset_of("REFUSAL_LOG")
    assert card.refusals() == {} and card.refusals(5) == {}
    refuse(dev, 5, "late", 3), refuse(dev, 5, "rkey"), refuse(dev, 0xABCDE, "late")
    assert card.refusals(5) == {"late": 3, "rkey": 1}
    assert dev.last("CQ_DOORBELL") == 6 << 16 | 5       # consumed, so that there is room again
    assert card.refusals(0xABCDE) == {"late": 1} and card.refusals(7) == {}
    refuse(dev, 5, "late", 8)                           # over the end of the ring
    assert card.refusals() == {5: {"late": 11, "rkey": 1}, 0xABCDE: {"late": 1}}
    assert card.refusals() == card.refusals()           # nothing is counted twice
    card.refusals()[5]["late"] = 0                      # a copy
    assert card.refusals(5)["late"] == 11


def test_the_log_and_completions_do_not_mix(card, dev):
    card.log_refusals(6)
    card.post_receive(5, 0, 8, 1, wr_id="mine")
    refuse(dev, 5, "no_receive")
    dev.complete(2, qpn=5, wqe_index=0, byte_len=8, msg_len=8)
    assert [c.wr_id for c in card.poll(2)] == ["mine"] and card.refusals(5) == {"no_receive": 1}
    assert card.outstanding(5) == 0
    card.arm(6)
    assert dev.last("CQ_DOORBELL") == 1 << 31 | 6 << 16 | 1


def test_a_new_driver_and_a_tear_down_end_the_log(card, dev):
    card.log_refusals(6)
    refuse(dev, 5, "late")
    card.refusals()
    card.tear_down()
    assert dev.last("REFUSAL_LOG") == 0
    with pytest.raises(CardError, match="log_refusals"):
        card.refusals()
    card.log_refusals(6)
    assert card.refusals() == {}
    Card(dev, CFG)
    assert dev.last("REFUSAL_LOG") == 0


def test_a_reason_that_the_driver_does_not_know(card, dev):
    card.log_refusals(6)
    dev.complete(6, qpn=5, opcode=OPCODE["refusal"], imm=30)
    assert card.refusals(5) == {"30": 1}


def test_tear_down_leaves_nothing(card, dev):
    for name in ("PKEY", "HOP_LIMIT", "CNP_INTERVAL"):
        card.reg_write(name, 3)
    card.tear_down()
    assert [dev.last(name) for name in ("PKEY", "HOP_LIMIT", "CNP_INTERVAL", "DMA_TIMEOUT")] == [0xFFFF, 64, 50_000, 16384]
    assert {c[1] for c in dev.commands if c[0] == "qp_destroy"} == set(range(16))
    assert len([c for c in dev.commands if c[0] == "region_set" and c[9] == 0]) == 32
    assert {c[1] for c in dev.commands if c[0] == "cq_set" and c[4] == 0} == set(range(8))
    assert dev.last("CTRL") == 0
