"""The ingress of transport rc: every opcode, lengths, and wrong frames of all kinds. See also test_captures_rc."""

import pytest
from amaranth.hdl import ResetInserter, Signal
from amaranth.sim import Simulator

from optinic.abi.verdicts import REASON
from optinic.config import preset
from optinic.rx import ingress
from optinic.rx.decode_rc import DecodeRc
from optinic.rx.descriptor import descriptor_layout, rc_descriptor_layout
from tests.formal.mutate import mutant

from .bench import Bench, check, compare
from .mutations import mutate
from .reference import CNP, DEFINED, UC_WRITE, XP, XP_READ, build, reseal
from .reference_rc import BARE, RC, UC, build_rc, head_size

TINY = preset("tiny", transport="rc")
LENGTH = REASON["length"]


def reasons(frames, cfg=TINY, **options):
    return [d.passed or d.reason for d, _ in check(cfg, frames, read=False, **options).results]


def test_layouts():
    assert descriptor_layout(TINY) == rc_descriptor_layout(TINY) and "op" not in descriptor_layout(preset("tiny")).members
    assert "compare" not in rc_descriptor_layout(TINY.with_(rc_atomics=False)).members


# -- frames made here ------------------------------------------------------------------------------------


def some(rng, opcode, size=None, **more):
    op = opcode & 0x1F
    if size is None:
        size = 8 if op == 0x12 else 0 if op in BARE else rng.choice((0, 1, 2, 3, 4, 5, 33, 100))
    head = rng.randbytes(head_size(op)) if opcode in RC | UC else rng.randbytes(16)
    more = {"qpn": rng.getrandbits(24), "psn": rng.getrandbits(24), "pkey": rng.getrandbits(16), "tos": rng.randrange(256),
            "bth1": rng.choice((0, 0x80, 0x40)), "v6": rng.random() < .4, "vlan": rng.choice((None, 3)), "pad_to": rng.choice((0, 60)),
            "tail": rng.randbytes(rng.choice((0, 0, 3)))} | more
    frame = build_rc(opcode, rng.randbytes(size), head=head, **more)
    return ack_req(frame) if rng.getrandbits(1) else frame


def ack_req(frame):
    """The same with AckReq set."""
    at = (18 if frame[12:14] == b"\x81\x00" else 14) + (40 if frame[12:14] == b"\x86\xdd" or frame[16:18] == b"\x86\xdd" else 20) + 16
    return reseal(frame[:at] + bytes([frame[at] | 0x80]) + frame[at + 1:])


def test_every_opcode(rng):
    """All 256, with enough behind the BTH for any headers."""
    cfg = TINY.with_(data_width=256, rx_buffer_bytes=32768)
    results = check(cfg, [build(op, ext=rng.randbytes(32), bth1=0x80) for op in range(256)], read=False).results
    for op, (d, _) in enumerate(results):
        if op in (*XP, XP_READ, 0x64, 0x1C, 0x1D):
            assert d.other and not d.reason


@pytest.mark.parametrize("knobs", [{}, dict(uc=False), dict(rc_atomics=False), dict(ipv6=False, vlan=False)])
def test_every_spoken_opcode(knobs, rng):
    check(TINY.with_(**knobs), [some(rng, op) for op in sorted(RC | UC | {CNP})], read=False)


def test_lengths(rng):
    """Each opcode with its headers cut short byte by byte, and with payloads around the MTU and where none may be."""
    frames, want = [], []
    for opcode in sorted(RC | UC):
        op, v6 = opcode & 0x1F, rng.getrandbits(1)
        head, fit = head_size(op), 8 if op == 0x12 else 0
        for size in {0, head - 4, head - 1} - {-1, -4}:
            if size < head:
                frames.append(build(opcode, ext=bytes(size), v6=v6))
                want.append(LENGTH)
        for size, good in (fit, 1), (1, not fit and op not in BARE), (1024, not fit and op not in BARE), (1025, 0):
            if size < 1000 or op in (0x01, 0x0B, 0x0C, 0x0E, 0x12):
                frames.append(build_rc(opcode, rng.randbytes(size), v6=v6))
                want.append(0 if good else LENGTH)
    assert reasons(frames) == want


def test_pad(rng):
    """Any pad, also more than there is; a pad that makes up for a payload."""
    frames = [build_rc(op, rng.randbytes(n), bth1=pad << 4)
              for op in (0x04, 0x0A, 0x0D, 0x11, 0x12, 0x24) for n in (0, 4, 8) for pad in range(4)]
    frames += [build(0x0C, ext=bytes(16 + n), bth1=n << 4) for n in range(4)]       # bytes behind RETH that are pad
    got = reasons(frames)
    assert got[-4:] == [0] * 4 and 0 in got[:-4] and LENGTH in got[:-4]


def test_reth_length_is_not_judged():
    """It is the responder's to answer."""
    assert reasons([build(op, bytes(9), reth_len=n) for op in (UC_WRITE,) for n in (0, 9, 1 << 31)]
                   + [build_rc(0x0A, bytes(9)), build_rc(0x0B, bytes(9))]) == [0] * 5


@pytest.mark.parametrize("opcode,v6,vlan", [(0x13, False, None), (0x0B, True, 7), (0x12, False, 1)])
def test_every_truncation(opcode, v6, vlan, rng):
    frame = some(rng, opcode, v6=v6, vlan=vlan)
    check(TINY, [frame[:n] for n in range(1, len(frame) + 1)], read=False)


@pytest.mark.parametrize("width,count", [(64, 120), (512, 150)])
def test_mutations(width, count, rng):
    opcodes = [*sorted(DEFINED), *sorted(RC | UC) * 4]
    frames = [mutate(rng, some(rng, rng.choice(opcodes), rng.choice((None, None, None, 0, 8, 30)))) for _ in range(count)]
    frames = [(f, rng.random() < .03) for f in frames]
    check(TINY.with_(data_width=width, rx_buffer_bytes=32768), frames, read=False, gap=0.02)


@pytest.mark.parametrize("knobs", [dict(ipv6=False), dict(vlan=False), dict(uc=False),
                                   dict(rc_atomics=False, ipv6=False, vlan=False, uc=False)])
def test_parts_left_out(knobs, rng):
    frames = [mutate(rng, some(rng, rng.choice(sorted(RC | UC)))) for _ in range(40)]
    check(TINY.with_(**knobs), frames, read=False)


@pytest.mark.parametrize("width", [128, 512])
def test_pauses_and_back_pressure(width, rng):
    frames = [some(rng, rng.choice(sorted(RC | UC)), None) for _ in range(40)]
    check(TINY.with_(data_width=width, rx_buffer_bytes=8192 if width < 512 else 32768), frames, gap=0.1, stall=0.9)


def test_reset_in_mid_stream(rng):
    """Cut off within a frame, or with frames in the pipeline: the next ones are whole."""
    frames = [some(rng, op) for op in (0x04, 0x0A, 0x13, 0x0D)]
    for upto in 1, 4, 7:
        rst = Signal()
        bench = Bench(TINY, frames)
        inner = bench.dut
        dut = ResetInserter(rst)(inner)

        async def mac(ctx):
            ctx.set(inner.enable, 1), ctx.set(inner.hold, 1)
            await bench.send_frame(ctx, frames[2])
            await bench.send_frame(ctx, frames[0] + bytes(40), upto=upto)
            ctx.set(inner.mac.tvalid, 0), ctx.set(rst, 1)
            await ctx.tick()
            ctx.set(rst, 0)
            await bench.mac(ctx)

        async def reader(ctx):
            await ctx.tick().until(rst)
            await ctx.tick()
            await bench.reader(ctx)
        sim = Simulator(dut)
        sim.add_clock(1e-8)
        for each in mac, reader:
            sim.add_testbench(each)
        sim.add_testbench(bench.clock, background=True)
        sim.run()
        assert len(bench.results) == len(frames)
        for (payload, stored), frame in zip(bench.results, frames):
            compare(payload, stored, frame, False, TINY)


# -- negative controls -------------------------------------------------------------------------------------

MUTANTS = [
    ('v.is_mine & (size > self.cfg.mtu_max)', '0'),
    ('v.is_bare & (size != 0)', '0'),
    ('v.is_original & (size != ATOMIC_ACK_ETH.size)', '0'),
    ('v.is_sized & v.payload[-1]', '0'),
    ('op.ext_bytes - (ATOMIC_ACK_ETH.size if original(op) else 0)', 'op.ext_bytes'),
    ('imm(RETH.size), imm(0)', 'imm(0), imm(0)'),
    ('code[5:] == 1', '0'),
    ('among(lambda op: not mine(op) and op.transport != "cnp")', 'among(lambda op: op.transport == "ud")'),
]


@pytest.mark.parametrize("old,new", MUTANTS, ids=range(len(MUTANTS)))
def test_a_broken_decoder_is_noticed(old, new, monkeypatch, rng):
    monkeypatch.setattr(ingress, "DecodeRc", mutant(DecodeRc.__module__, old, new).DecodeRc)
    frames = [build_rc(0x02, bytes(1028)), build_rc(0x11, bytes(4)), build_rc(0x12, bytes(12)), build(CNP, bth1=0x10),
              build_rc(0x12, bytes(8)), build_rc(0x0B), build_rc(0x27), build(0xEA, ext=bytes(32))]
    with pytest.raises(AssertionError, match="got"):
        check(TINY, frames, read=False)
