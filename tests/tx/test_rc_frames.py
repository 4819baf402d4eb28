"""Frames of the send half against captures of a real requester and responder, byte for byte, from their work requests."""

import pytest

from .rc_frames import A, B, Card, captured, check, fields_of, icrc, pattern, requests

_OPS = {"write": "write", "writeimm": "write_imm", "send": "send", "sendse": "send", "sendimm": "send_imm", "sendinv": "send_inv", "read": "read",
        "cas": "compare_swap", "fadd": "fetch_add"}


def post_all(card, works, golden):
    """Posts what the README says; where the peer's memory lies only the frames know."""
    begins = [f for f in map(fields_of, golden) if f.opcode & 31 not in (1, 2, 3, 7, 8, 9, 0x16)]
    for n, ((op, size), f) in enumerate(zip(works, begins, strict=True)):
        where = dict(remote_va=f.va, rkey=f.rkey)
        if op == "cas":
            card.post("compare_swap", 8, va=0x1122334455667788, lkey=0, compare_hi=0, **where)
        elif op == "fadd":
            card.post("fetch_add", 8, va=0x0102030405060708 + n, lkey=0, compare_hi=0, **where)
        elif op == "read":
            card.post("read", size, **where)
        else:
            imm = f.word if op == "sendinv" else (0xA5000000 if "write" in op else 0x5A000000) | n
            card.post(_OPS[op], size, pattern(n, size), imm=imm, solicited=int(op == "sendse"), **where)


def card_of(name, me, peer, golden):
    options, works = requests(name)
    return Card(me, peer, fields_of(golden[0]).qpn, uc=options.get("t") == "uc", psn=int(options.get("P", "0x123456"), 16),
                mtu=int(options.get("m", 1024)), tclass=int(options.get("C", "0"), 16)), works


@pytest.mark.parametrize("name", ["rc_write_sizes", "rc_mix_window", "rc_psn_wrap", "rc_send_inv_only", "rc_atomic", "rc_zero_length",
                                  "rc_ecn_ect0", "uc_write", "uc_send"])
def test_requester(name):
    golden = captured(name, A)
    card, works = card_of(name, A, B, golden)
    post_all(card, works, golden)
    check(card.run(len(golden)), golden)
    assert not card.failed


def test_asking_for_acks_inside_a_message():
    golden = captured("rc_write_ackreq", A)[:60]
    card, works = card_of("rc_write_ackreq", A, B, golden)
    post_all(card, works, golden)
    frames = card.run(60)[:60]
    check(frames, golden)
    assert [i for i, f in enumerate(frames) if f[50]] == [63 - 0x123456 % 64]


@pytest.mark.parametrize("name", ["rc_read", "rc_atomic", "rc_rnr_exhausted"])
def test_responder(name):
    """Its answers and ACKs, in their order: each is asked for when what was before it has left."""
    golden = captured(name, B)[:30]
    asked = {f.psn: f for f in map(fields_of, captured(name, A))}
    card, _ = card_of(name, B, A, golden)
    steps = []
    while golden and fields_of(golden[-1]).opcode in (0x0D, 0x0E):      # the last answer is whole
        golden.pop()
    answers = list(map(fields_of, golden))
    for i, f in enumerate(answers):
        if f.opcode == 0x11:
            ack = dict(qp=1, psn=f.psn, msn=f.word & 0xFFFFFF, syndrome=f.word >> 24)
            steps.append((i, lambda ack=ack: card.acks.append(ack)))
        elif f.opcode in (0x0D, 0x10, 0x12):
            request = asked[f.psn]
            job = dict(qp=1, atomic=int(f.opcode == 0x12), psn=f.psn, msn=f.word & 0xFFFFFF)
            if f.opcode == 0x12:
                job["va"] = int.from_bytes(f.body[4:12], "big")
            else:
                job |= dict(length=int.from_bytes(request.body[12:16], "big"), key=9)
                payload = b""
                for g in answers[i:]:
                    payload += g.body if g.opcode == 0x0E else g.body[4:]
                    if g.opcode in (0x0F, 0x10):
                        break
                job["va"] = card.buffer(payload[:job["length"]])
            steps.append((i, lambda job=job: card.jobs.append(job)))
    check(card.run(len(golden), steps), golden)
    assert len(card.answered) == sum(f.opcode in (0x0D, 0x10, 0x12) for f in answers)


def test_the_icrc_of_the_captures():
    """The check's own function agrees with the peer."""
    for frame in captured("rc_mix_window", A) + captured("uc_send", A):
        assert frame[-4:] == icrc(frame)
