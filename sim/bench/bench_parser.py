"""Ingress on frames of every kind, right and wrong, back to back and with pauses, and through a reset."""

import cocotb

from sim import frames as f

from .bfm import begin, config, cycles
from .ingress import IngressBench

WRONG = ({"tver": 3}, {"dport": 4790}, {"protocol": 6}, {"pad": 1}, {"pad": 3}, {"version": 5}, {"flags_fragment": 0x2000},
         {"ethertype": 0x0806}, {"icrc_xor": 1}, {"ihl": 6}, {"ihl": 4})


def mixed(rng, cfg, n):
    for _ in range(n):
        size = rng.choice([0, 1, 2, 3, *[rng.randrange(130)] * 4, rng.randrange(cfg.mtu_max + 1), cfg.mtu_max])
        payload, qpn = rng.randbytes(size), rng.randrange(1 << 24)
        fields = {"tos": rng.randrange(256), "ttl": rng.randrange(256), "psn": rng.randrange(1 << 24)}
        fields |= {"src": f.REMOTE[2]} if rng.random() < .3 else {}
        fields |= {"vlan": rng.randrange(1 << 16)} if rng.random() < .2 else {}
        fields |= {"trailer": rng.randbytes(rng.randrange(1, 40))} if rng.random() < .2 else {}
        draw = rng.random()
        if draw < .15:
            fields |= rng.choice(WRONG)
        elif draw < .25:
            fields |= {rng.choice(["udp_len", "ip_len"]): rng.randrange(1 << rng.choice([8, 11, 16]))}
        elif draw < .28:
            fields |= {"ip_checksum": rng.randrange(1 << 16)}
        imm = rng.choice([None, rng.randrange(1 << 32)])
        va, key = rng.randrange(1 << 64), rng.randrange(1 << 32)
        frame = rng.choice([
            lambda: f.uc_send(qpn, payload, imm=imm, **fields),
            lambda: f.uc_write(qpn, payload, va, key, imm=imm, **fields),
            lambda: f.xp_send(qpn, payload, seq=rng.randrange(1 << 32), msg_len=size + 77, offset=rng.randrange(80), imm=imm,
                              generation=rng.randrange(256), tag=rng.randrange(1 << 16), **fields),
            lambda: f.xp_write(qpn, payload, va, key, imm=imm, seq=9, msg_len=size, generation=5, tag=6, **fields),
            lambda: f.cnp(qpn, **fields),
            lambda: f.build(rng.randrange(256), qpn, payload=payload, **fields),
        ])()
        yield frame[:rng.randrange(1, len(frame))] if rng.random() < .1 else frame


async def mix(dut, pause, n):
    rng = await begin(dut)
    said = await IngressBench(dut, rng, pause).run(list(mixed(rng, config(), n)))
    assert said.count("none") > n // 4, "most of the frames should have been right"
    assert len(set(said)) >= 5, f"only {set(said)} occurred"


@cocotb.test()
async def back_to_back(dut):
    await mix(dut, 0.0, 60)


@cocotb.test()
async def with_pauses(dut):
    await mix(dut, 0.3, 40)


@cocotb.test()
async def reset_in_mid_frame(dut):
    """After a reset in any beat of a frame the next frame is whole."""
    rng = await begin(dut)
    bench = IngressBench(dut, rng)
    for stop in range(1, 12):
        bench.source.send(f.uc_send(3, rng.randbytes(200)))
        await cycles(dut, stop)
        await bench.restart()
        assert await bench.run([f.uc_send(stop, rng.randbytes(stop + 60)), f.uc_send(1, b"")]) == ["none", "none"]
