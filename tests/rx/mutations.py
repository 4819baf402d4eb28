"""Random frames and random damage, most of it where it changes a verdict."""

from .reference import DEFINED, UC, XP, build, reseal

_OPCODES = [*sorted(DEFINED), *XP * 5, *UC * 5]


def any_frame(rng, sizes=(0, 1, 2, 3, 4, 5, 16, 30, 100, 256, 257, 300)):
    return build(rng.choice(_OPCODES), rng.randbytes(rng.choice(sizes)), v6=rng.random() < .4, vlan=rng.choice((None, 3)),
                 tos=rng.randrange(256), ttl=rng.randrange(256), ident=rng.randrange(65536), bth4=rng.randrange(256),
                 src=None, qpn=rng.randrange(1 << 24), psn=rng.randrange(1 << 24), generation=rng.randrange(256),
                 tag=rng.randrange(1 << 16), seq=rng.randrange(1 << 32), imm=rng.randrange(1 << 32),
                 reth_len=rng.choice((None, None, None, 7)), offset=rng.choice((0, 0, 5, 0xFFFFFFFF)),
                 msg_len=rng.choice((None, None, 0xFFFFFFFF, 300)), tail=rng.randbytes(rng.choice((0, 0, 3))),
                 pad_to=rng.choice((0, 60)), pad_byte=rng.randrange(256), va=rng.randrange(1 << 64))


def mutate(rng, frame):
    """The frame with none to three changes; half of the time with the ICRC made right again."""
    b = bytearray(frame)
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        kind = rng.random()
        if kind < .6:
            b[rng.randrange(min(len(b), 110))] ^= 1 << rng.randrange(8)
        elif kind < .8:
            b[rng.randrange(len(b))] = rng.choice((0, 255, 0x45, 17, 4, 6))
        elif kind < .9:
            del b[rng.randrange(1, len(b) + 1):]
        else:
            b += rng.randbytes(rng.randrange(1, 20))
    frame = bytes(b)
    if rng.random() < .5 and len(frame) > 24:
        frame = reseal(frame)
    return frame
