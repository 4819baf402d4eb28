"""Random scenarios for a card of transport rc: what its peers send, what its host posts, and how unkind the bus is. One seed, one scenario.

A scenario is a list of steps, each a list of operations (see :mod:`sim.rc_player`) behind which the card comes to rest. It is made by
looking at a model that does each step: so most frames are what a peer would send next, or nearly so. No operation hangs on a race: the
queue pairs have no ACK timeout, an RNR timer that runs out does so in a step of its own, what a burst of frames writes is not read in it.
"""

import random
from dataclasses import dataclass, field, replace

from optinic.abi.registers import ACCESS
from optinic.abi.structs import SEND_OP
from optinic.config import preset as preset_of
from sim.rc_player import BAD_BUS, FOREIGN, KEY, OWN_ONLY, READ_ONLY, SIZE, SMALL, VA, Player
from sim.frames import LOCAL, REMOTE, build, cnp, flip
from sim.model_device import ModelDevice
from sim.models.rc_wire import ahead, packets_of
from sim.rc_frames import CODES, request

__all__ = ["Scenario", "make_scenario"]

TARGET = SIZE // 4              # below, the card's own sends are read; above, peers write
WAITS = 1                       # RNR timer code: 10 us
KEYS = (FOREIGN, READ_ONLY, OWN_ONLY, SMALL, 0xDEAD, BAD_BUS)


@dataclass
class Scenario:
    seed: int
    cfg: object
    steps: list
    bus: dict = field(default_factory=dict)     #: keyword arguments of sim.device.SimDevice
    calm: bool = False                          #: never more than a frame in a step: all counters can be compared

    @property
    def frames(self):
        return sum(len(op[1]) for step in self.steps for op in step if op[0] == "frames")


def make_scenario(seed, preset="tiny", frames=150, **knobs):
    """A scenario of about `frames` frames; `knobs` change the configuration."""
    cfg = preset_of(preset, **{"transport": "rc", "trace": True, **knobs})
    return Maker(random.Random(f"rc {seed}"), cfg).make(seed, frames)


class Maker:
    def __init__(self, rng, cfg):
        self.rng, self.cfg = rng, cfg
        self.calm = rng.random() < 0.3
        self.options = {}       # of each QP
        self.spoiled = set()    # QPs with a request that can't be sent

    def make(self, seed, count):
        rng = self.rng
        scenario = Scenario(seed, self.cfg, [], self.make_bus(), self.calm)
        self.mutations = rng.choice((0.05, 0.2, 0.4))
        self.left = count
        with Player(ModelDevice(self.cfg, seed=1)) as self.player:
            self.do(scenario, [("log",)] * rng.randrange(2) + [("store", 0, rng.randrange(1 << 32))])
            indices = rng.sample(range(self.cfg.num_qps), 4)
            self.do(scenario, [self.new_life(i | rng.randrange(1 << 24 - self.cfg.qp_bits) << self.cfg.qp_bits) for i in indices])
            while self.left > 0:
                if step := self.make_step():
                    self.do(scenario, step)
        return scenario

    def do(self, scenario, step):
        scenario.steps.append(step)
        self.left -= sum(len(op[1]) for op in step if op[0] == "frames")
        found = self.player.step(step)
        assert not found.error, (seed_of(scenario), found.error)

    def make_bus(self):
        rng = self.rng
        if rng.randrange(3) == 0:
            return {}
        some = lambda high: rng.choice((0, 0, rng.uniform(0, high)))
        return {"pause": some(0.6), "host_pause": some(0.6), "mac_pause": some(0.6), "aw_pause": some(0.6), "w_pause": some(0.6),
                "b_pause": some(0.6), "ar_pause": some(0.6), "r_pause": some(0.6), "read_latency": rng.choice((2, 50, (1, 150))),
                "write_latency": rng.choice((2, 50, (1, 150))), "writes_max": rng.choice((1, 4, 64)), "interleave": rng.randrange(2),
                "visibility": rng.choice(("response", "accept", "random")), "shuffle": rng.choice((0, 60, 150))}

    # -- steps ----------------------------------------------------------------------------------------

    def make_step(self):
        rng = self.rng
        qpn = rng.choice(list(self.options))
        dead = qpn not in self.player.node.qps or self.receiver(qpn) is None or self.receiver(qpn).dead or self.receiver(qpn).state != "ready"
        if dead and rng.random() < 0.4 or rng.random() < 0.01:
            return self.end_of_life(qpn)
        kind = rng.choices(("receives", "sends", "requests", "answers", "junk", "region", "both", "knobs"), (15, 18, 40, 35, 5, 1, 8, 1))[0]
        return getattr(self, kind)(qpn)

    def receiver(self, qpn):
        return self.player.dev.card.receiver.qps.get(qpn)

    def sender(self, qpn):
        return self.player.dev.card.sender.qps.get(qpn)

    def new_life(self, qpn):
        rng = self.rng
        near = lambda: rng.choice((0, 1, (1 << 24) - 1 - rng.randrange(20), rng.randrange(1 << 24), (1 << 23) - rng.randrange(4)))
        options = dict(
            peer_qpn=rng.randrange(1 << 24), type=rng.choice(("rc",) * 4 + ("uc",)), psn=near(), expected=near(), retry=rng.choice((0, 1, 3, 7)),
            mtu=rng.choice([m for m in (256, 256, 256, 512, 1024) if m <= self.cfg.mtu_max]), rnr_retry=rng.choice((0, 1, 7)), rnr_timer=rng.randrange(32),
            window=rng.choice((0, 1, 2, 4, 0)), peer=rng.randrange(2 if self.cfg.ipv6 else 1), tclass=rng.choice((0, 0x68)))
        self.options[qpn] = options
        self.spoiled.discard(qpn)
        return "qp", qpn, options

    def end_of_life(self, qpn):
        rng = self.rng
        if qpn not in self.player.node.qps or self.receiver(qpn) is None or rng.random() < 0.1:
            return [self.new_life(qpn)]
        if rng.random() < 0.1:
            return [("destroy", qpn)]
        step = [("flush", qpn)]
        if rng.random() < 0.7:
            step.append(self.new_life(qpn))
        return step

    def receives(self, qpn):
        rng = self.rng
        qp = self.player.node.qps[qpn]
        room = self.cfg.rq_entries - 4 - (qp["receives"] - qp["receive"])
        step = []
        for _ in range(min(room, rng.choice((1, 3, 10)))):
            more = {}
            if rng.random() < 0.04:
                more["lkey"] = rng.choice(KEYS)
            if rng.random() < 0.02:
                more["va"] = VA + SIZE - rng.randrange(300)
            step.append(("receive", qpn, dict(offset=rng.randrange(TARGET, SIZE - 4096), length=rng.choice((0, 1, 100, 1000, 3000, 3000, 3000, 4096)), **more)))
        return step

    def sends(self, qpn):
        rng, options = self.rng, self.options[qpn]
        qp = self.player.node.qps[qpn]
        room = self.cfg.sq_entries - 4 - (qp["sends"] - qp["send"])
        step = []
        if qpn in self.spoiled:
            return step
        ops = list(SEND_OP) if options["type"] == "rc" or rng.random() < 0.05 else ["send", "send_imm", "write", "write_imm"]
        for _ in range(min(room, rng.choice((1, 2, 6)))):
            op = rng.choice(ops)
            size = self.size(options["mtu"])
            more = dict(offset=rng.randrange(TARGET - 4096), length=size, remote_va=rng.getrandbits(64), rkey=rng.getrandbits(32),
                        imm=rng.getrandbits(32), solicited=rng.randrange(2), signaled=rng.randrange(2) | (options["type"] == "uc"), result=rng.randrange(TARGET, SIZE - 4096))
            if op in ("compare_swap", "fetch_add"):
                more["operands"] = rng.getrandbits(64), rng.getrandbits(64)
            elif op != "read" and size <= 32 and rng.random() < 0.5:
                more["inline"] = rng.randbytes(size)
            if rng.random() < 0.02:
                more["lkey"] = rng.choice(KEYS)
                if options["type"] == "rc":     # what is behind one that can't be sent may have been on its way already
                    self.spoiled.add(qpn)
                    step.append(("send", qpn, op, more))
                    break
            if rng.random() < 0.02:
                more["result_length"] = rng.choice((0, 7, 8, size + 1, max(0, size - 1)))
            step.append(("send", qpn, op, more))
        return step

    def both(self, qpn):
        """Posted in the same step as frames come."""
        return self.receives(qpn) + self.requests(self.rng.choice(list(self.options)))

    def knobs(self, qpn):
        return [("knobs", self.make_bus())]

    def region(self, qpn):
        rng = self.rng
        key = rng.choice((SMALL, READ_ONLY))
        rights = tuple(a for a in ACCESS if rng.random() < 0.7)
        return [rng.choice((("unregion", key), ("region", key, VA + rng.randrange(TARGET, SIZE - 4096), rng.randrange(1, 4096), rights)))]

    def size(self, mtu):
        return self.rng.choice((0, 1, 4, 31, 32, mtu - 1, mtu, mtu + 1, 2 * mtu, self.rng.randrange(3 * mtu)))

    # -- frames: requests -----------------------------------------------------------------------------

    def common(self, qpn):
        source = dict(src=REMOTE[2], dst=LOCAL[2]) if self.options[qpn]["peer"] else {}
        return source | ({"tos": 3} if self.rng.random() < 0.01 else {})

    def requests(self, qpn):
        rng = self.rng
        r = self.receiver(qpn)
        if r is None:
            return self.junk(qpn)
        uc = self.options[qpn]["type"] == "uc"
        expected, message = r.expected, r.open and replace(r.open)
        frames = []
        for _ in range(1 if self.calm else rng.choice((1, 1, 2, 3, 5))):
            name, fields, payload, expected_then, message = self.next_request(expected, message, self.options[qpn]["mtu"], uc)
            psn = expected
            if rng.random() < self.mutations:
                name, psn, fields, payload = self.mutate(name, psn, fields, payload, uc)
            common = {} if "src" in fields else self.common(qpn)
            frame = request("UC_" + name if uc and name in _PLAIN else name, qpn, psn, payload, **fields, **common)
            frames.append(self.damage(frame))
            expected = expected_then
            if fields.get("reth") and name == "READ_REQ":
                break           # its answer is read while what follows is written
        return [("frames", tuple(frames))]

    def next_request(self, psn, message, mtu, uc):
        """What may come next: (name, extension headers, payload, PSN behind it, message under way then)."""
        rng = self.rng
        imm = lambda: rng.getrandbits(32)
        ack = {"ack": int(not uc and rng.random() < 0.6), "solicited": rng.randrange(2)}
        if message is None:
            kind = rng.choices(("SEND", "WRITE", "READ", "ATOMIC"), (40, 40, 0 if uc else 18, 0 if uc else 18))[0]
            key = KEY if rng.random() < 0.97 else rng.choice(KEYS)
            va = VA + rng.randrange(TARGET, SIZE - 4096)
            if kind == "READ":
                length = self.size(mtu)
                if rng.random() < 0.1:
                    va = VA + SIZE - length
                return "READ_REQ", ack | dict(reth=(va, key, length)), b"", (psn + packets_of(length, mtu)) % (1 << 24), None
            if kind == "ATOMIC":
                before = int.from_bytes(self.player.node.load((va & ~7) - VA, 8), "little")
                operands = rng.getrandbits(64), rng.choice((before, rng.getrandbits(64)))
                return rng.choice(("FETCH_ADD", "CMP_SWAP")), ack | dict(atomic=(va & ~7, key, *operands)), b"", (psn + 1) % (1 << 24), None
            length = self.size(mtu)
            place = "FIRST" if length > mtu else "ONLY"
            if rng.random() < 0.1:
                va = VA + SIZE - length         # up to the region's last byte
            if kind == "WRITE":
                ack["reth"] = va, key, length
            size = min(length, mtu)
            then = _Open(kind == "SEND", length, size) if place == "FIRST" else None
        else:
            kind = "SEND" if message.send else "WRITE"
            left = rng.choice((mtu + 1, mtu, 1, rng.randrange(1, mtu + 1))) if message.send else message.length - message.offset
            place, size = ("MIDDLE", mtu) if left > mtu else ("LAST", left)
            then = _Open(message.send, message.length, message.offset + size) if place == "MIDDLE" else None
        name = f"{kind}_{place}"
        if place in ("LAST", "ONLY"):
            end = rng.choice(("", "_IMM") if kind == "WRITE" or uc else ("", "_IMM", "_INV"))
            name += end
            if end:
                ack["imm" if end == "_IMM" else "ieth"] = imm()
        return name, ack, rng.randbytes(max(0, size)), (psn + 1) % (1 << 24), then

    def mutate(self, name, psn, fields, payload, uc):
        """Something else than what may come next. Most of it doesn't end the QP."""
        rng, fields = self.rng, dict(fields)
        kind = rng.choices(("psn", "opcode", "size", "key", "va", "length", "pad", "header"), (70, 5, 5, 4, 3, 3, 5, 3))[0]
        if kind == "psn":
            psn += rng.choice((-1, -1, -1, -2, -3, -rng.randrange(1, 40), 1, 1, 2, rng.randrange(1, 40), 1 << 23, (1 << 23) - 1, rng.randrange(1 << 24)))
        elif kind == "opcode":
            name = rng.choice([n for n in CODES if CODES[n] < 0x18])
            fields = {k: v for k, v in fields.items() if k in ("ack", "solicited")}
            for part in _parts(name):
                fields[part] = {"reth": (VA + rng.randrange(TARGET, SIZE - 4096), KEY, len(payload)), "imm": 5, "ieth": 6, "aeth": rng.choice((0x1F << 24, 0x60 << 24)),
                                "original": 7, "atomic": (VA + TARGET, KEY, 1, 2)}[part]
        elif kind == "size":
            payload = rng.choice((payload[:-1], payload + b"x", b"", rng.randbytes(rng.randrange(min(1100, self.cfg.mtu_max + 40)))))
        elif kind in ("key", "va", "length"):
            for part in ("reth", "atomic"):
                if part in fields:
                    va, key, *rest = fields[part]
                    if kind == "key":
                        key = rng.choice(KEYS)
                    elif kind == "va":
                        va = rng.choice((va ^ 1, VA + SIZE - rng.randrange(600), VA - 1, rng.getrandbits(64), (1 << 64) - 10))
                    elif part == "reth":
                        rest = [rng.choice((rest[0] + 1, max(0, rest[0] - 1), rng.randrange(2000), 1 << 31, (1 << 31) + 1, (1 << 32) - 1, 0))]
                    fields[part] = va, key, *rest
        elif kind == "pad":
            fields["pad"] = rng.randrange(4)
        else:
            fields |= rng.choice((dict(pkey=0x7FFF), dict(pkey=0x1234), dict(tver=1), dict(migrated=1), dict(src="10.0.0.9"), dict(fecn_becn=0x40)))
        return name, psn % (1 << 24), fields, payload

    def damage(self, frame):
        rng = self.rng
        if rng.random() > self.mutations / 5:
            return frame
        kind = rng.randrange(4)
        if kind == 0:
            return frame[:rng.randrange(1, len(frame) + 1)]
        if kind == 1:
            return flip(frame, rng.randrange(8 * len(frame)))
        if kind == 2:
            return frame + rng.randbytes(rng.randrange(1, 40))
        return flip(frame, 8 * (len(frame) - 1 - rng.randrange(4)))

    # -- frames: answers ------------------------------------------------------------------------------

    def answers(self, qpn):
        rng = self.rng
        s = self.sender(qpn)
        if s is None or self.options[qpn]["type"] == "uc":
            return self.junk(qpn) if rng.random() < 0.1 else []
        under_way = ahead(s.top, s.una)
        if not under_way and rng.random() < 0.9:
            return []
        frames = []
        step = [("frames", frames)]
        kind = rng.choices(("good", "ack", "nak", "rnr", "response"), (60, 12, 6, 4, 8))[0]
        common = self.common(qpn)
        msn = rng.getrandbits(24)
        if kind == "good":
            psn, begun = s.una, [(b.first, b.count, b.got, b.result, b.request) for b in s.begun]
            for _ in range(1 if self.calm else rng.choice((1, 1, 3, 8))):
                if not begun or ahead(psn, s.una) >= under_way:
                    break
                first, count, got, result, asked = begun[0]
                if result is None:
                    some = rng.randrange(1, 1 + next((i for i, b in enumerate(begun) if b[3] is not None), len(begun)))
                    first, count, *_ = begun[some - 1]
                    end = first + rng.choice((count, count, rng.randrange(count) + 1))
                    if ahead(end, s.una) > under_way:
                        break
                    frames.append(request("ACK", qpn, end - 1, aeth=rng.choice((0x1F, 0x1F, 0, 0x0A)) << 24 | msn, ack=0, **common))
                    begun = begun[some:] if end == first + count else begun[some - 1:]
                    psn = end % (1 << 24)
                    if end != first + count:
                        break       # inside a message: what comes next is not known here
                else:
                    frames.append(self.response(qpn, asked, first, count, got, common))
                    got, psn = got + 1, (psn + 1) % (1 << 24)
                    begun[0] = first, count, got, result, asked
                    if got == count:
                        begun.pop(0)
        elif kind == "response":
            some = rng.choice(s.begun) if s.begun else None
            if some and some.result is not None:
                frames.append(self.response(qpn, some.request, some.first, some.count, rng.randrange(some.count), common, odd=rng.random() < 0.3))
            else:
                frames.append(request(rng.choice(("READ_RESP_ONLY", "ATOMIC_ACK")), qpn, s.una + rng.randrange(-2, 3), b"", aeth=0x1F << 24, ack=0, **common))
        else:
            at = rng.choice((s.una, s.una, s.una + rng.randrange(-3, max(1, under_way) + 2), s.top, s.top - 1, s.una - 1, rng.randrange(1 << 24)))
            syndrome = {"ack": 0x1F, "nak": rng.choice((0x60, 0x60, 0x60, 0x60, 0x61, 0x62, 0x63, rng.randrange(256))),
                        "rnr": 0x20 | rng.choice((WAITS, WAITS, WAITS, 0))}[kind]
            if syndrome >> 5 == 1 and syndrome & 31 != 0:
                syndrome = 0x20 | WAITS
            frames.append(request("ACK", qpn, at, aeth=syndrome << 24 | msn, ack=0, **common))
            if syndrome >> 5 == 1:
                step.append(("wait", 20_000))
        if not frames:
            return []
        if rng.random() < self.mutations / 4:
            frames[-1] = self.damage(frames[-1])
        step[0] = "frames", tuple(frames)
        return step

    def response(self, qpn, asked, first, count, n, common, odd=False):
        rng = self.rng
        if asked.op != "read":
            name, payload = "ATOMIC_ACK", b""
        else:
            mtu = self.options[qpn]["mtu"]
            size = mtu if n < count - 1 else asked.length - n * mtu
            name = "READ_RESP_" + ("ONLY" if count == 1 else "FIRST" if n == 0 else "LAST" if n == count - 1 else "MIDDLE")
            if n and rng.random() < 0.1:
                name = "READ_RESP_" + ("ONLY" if n == count - 1 else "FIRST")       # as after a request for the rest
            payload = rng.randbytes(size)
        if odd:
            name = rng.choice(("READ_RESP_ONLY", "READ_RESP_FIRST", "READ_RESP_MIDDLE", "READ_RESP_LAST", "ATOMIC_ACK"))
            payload = b"" if name == "ATOMIC_ACK" else rng.choice((payload, payload[:-1], payload + b"y", rng.randbytes(8), b""))
        fields = dict(aeth=None if name.endswith("MIDDLE") else 0x1F << 24 | rng.getrandbits(24),
                      original=rng.getrandbits(64) if name == "ATOMIC_ACK" else None)
        return request(name, qpn, first + n, payload, ack=0, **fields, **common)

    # -- the rest -------------------------------------------------------------------------------------

    def junk(self, qpn):
        rng = self.rng
        kind = rng.randrange(6)
        if kind == 0:
            return [("frames", (cnp(qpn, **self.common(qpn)),)), ("wait", 300_000)]
        if kind == 1:
            return [("frames", (build(rng.randrange(256), rng.choice((qpn, qpn ^ 1 << 23, rng.randrange(1 << 24))), headers=rng.randbytes(rng.choice((0, 4, 16, 20, 28))),
                                      payload=rng.randbytes(rng.choice((0, 1, 8, 100))), psn=rng.randrange(1 << 24), **self.common(qpn)),))]
        if kind == 2:
            return [("frames", (rng.randbytes(rng.randrange(1, 200)),))]
        if kind == 3:
            return [("frames", (request("UC_SEND_ONLY" if self.options[qpn]["type"] == "rc" else "SEND_ONLY", qpn, 0, b"abcd", **self.common(qpn)),))]
        name = rng.choice([n for n in CODES if n != "CNP"])
        value = {"reth": (VA + TARGET, KEY, 4), "imm": 5, "ieth": 6, "aeth": 0x1F << 24, "original": 7, "atomic": (VA + TARGET, KEY, 1, 2)}
        r = self.receiver(qpn)
        psn = rng.choice((r.expected if r else 0, rng.randrange(1 << 24)))
        payload = rng.choice((b"", b"abcd", rng.randbytes(self.cfg.mtu_max + 4)))
        return [("frames", (request(name, qpn, psn, payload, **{p: value[p] for p in _parts(name)}, **self.common(qpn)),))]


@dataclass
class _Open:
    send: bool
    length: int
    offset: int


def _parts(name):
    from sim.rc_frames import PARTS
    return PARTS.get(name.removeprefix("UC_"), ())


def seed_of(scenario):
    return f"seed {scenario.seed}, step {len(scenario.steps)}"


_PLAIN = {name for name, code in CODES.items() if code < 0x0C}

