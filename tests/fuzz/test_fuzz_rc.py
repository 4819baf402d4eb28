"""Random traffic on the card of transport rc and on its model; and that the comparison would see what it is there to see."""

import os

import pytest

from sim.fuzz_rc import Difference, difference, fuzz, main, model, shrink
from sim.models import rc_acks, rc_requester, rc_responder, rc_sending
from sim.models.rc_wire import ACK
from sim.scenario_rc import make_scenario
from tests.fuzz.broken import breaker

FRAMES = 3000
SOAK_FRAMES = int(os.environ.get("OPTINIC_SOAK_FRAMES", "100000"))


@pytest.mark.rtl
def test_card_and_model_agree(seed):
    frames, scenarios, seen = fuzz(FRAMES, seed, "tiny")
    assert frames >= FRAMES and scenarios > 10 and seen["placed"] > FRAMES / 10 and len(seen) > 50


@pytest.mark.rtl
@pytest.mark.soak
@pytest.mark.parametrize("preset, knobs", [("tiny", {}), ("small", {}), ("tiny", {"rc_atomics": False, "ipv6": False, "rc_outstanding": 4}),
                                           ("small", {"data_width": 512, "rc_resources": 2})])
def test_soak(seed, preset, knobs):
    fuzz(SOAK_FRAMES, seed, preset, **knobs)


# -- scenarios -----------------------------------------------------------------------------------------------

def test_a_seed_makes_one_scenario():
    assert make_scenario(7, frames=60).steps == make_scenario(7, frames=60).steps
    assert make_scenario(7, frames=60).steps != make_scenario(8, frames=60).steps


def test_scenarios_meet_everything():
    _, _, seen = fuzz(6000, 1, left=model, right=model)
    reasons = {"length", "checksum", "icrc", "version", "opcode", "qpn", "state", "pkey", "source", "no_receive", "rkey", "pd", "access", "bounds",
               "psn", "sequence", "runt"}
    ends = {f"send fatal {c}" for c in ("retry", "rnr_retry", "remote_access", "remote_invalid", "remote_operation", "protection", "length")}
    ends |= {f"receive fatal {c}" for c in ("remote_access", "remote_invalid", "protection", "bus")}
    ends |= {"send success complete", "receive success complete", "send error flushed", "receive error flushed", "receive error protection"}
    packets = {"ACK", "ATOMIC_ACK", "READ_REQ", "CMP_SWAP", "FETCH_ADD"} | {f"READ_RESP_{p}" for p in ("FIRST", "MIDDLE", "LAST", "ONLY")}
    packets |= {f"{k}_{p}" for k in ("SEND", "WRITE", "UC_SEND", "UC_WRITE") for p in ("FIRST", "MIDDLE", "LAST", "ONLY", "LAST_IMM", "ONLY_IMM")}
    wanted = {"placed", "consumed", "passed", "SEND_LAST_INV", "SEND_ONLY_INV", *reasons, *ends, *packets}
    assert wanted <= seen.keys(), wanted - seen.keys()


# -- the comparison sees what it should ----------------------------------------------------------------------

broken = breaker(model)


def takes_duplicates(m):
    right = rc_responder.Responder._duplicate

    def wrong(self, qp, packet, now):
        if packet.op != 0x0A:
            return right(self, qp, packet, now)
        qp.expected, qp.quiet = packet.psn, False
        return self._request(qp, packet, now)
    m.setattr(rc_responder.Responder, "_duplicate", wrong)


def naks_every_packet(m):
    right = rc_responder.Responder._request

    def wrong(self, qp, packet, now):
        qp.quiet = False
        return right(self, qp, packet, now)
    m.setattr(rc_responder.Responder, "_request", wrong)


def acknowledges_one_too_many(m):
    m.setattr(rc_acks.Acknowledges, "owe", lambda self, number, psn, msn, syndrome: self._owed.__setitem__(
        number, (psn + (syndrome == ACK) & 0xFFFFFF, msn, syndrome)))


def counts_messages_wrong(m):
    right = rc_responder.Responder._read

    def wrong(self, qp, packet, now, again=False):
        before = qp.msn
        found = right(self, qp, packet, now, again)
        qp.msn = before
        return found
    m.setattr(rc_responder.Responder, "_read", wrong)


def forgets_the_last_byte_of_a_region(m):
    right = rc_responder.Responder._find
    m.setattr(rc_responder.Responder, "_find", lambda self, qp, key, va, size, access: right(self, qp, key, va, size + 1, access))


def goes_back_to_the_message(m):
    right = rc_requester.Requester._from_una

    def wrong(self, qp):
        right(self, qp)
        if qp.begun:
            qp.offset, qp.psn = 0, qp.begun[0].first
    m.setattr(rc_requester.Requester, "_from_una", wrong)


def overlooks_missing_responses(m):
    m.setattr(rc_requester.Requester, "_implied", lambda self, qp, now: None)


def retries_once_more(m):
    right = rc_requester.Requester._retry

    def wrong(self, qp, now):
        qp.retries -= qp.retries == qp.retry and not hasattr(qp, "generous")
        qp.generous = True
        return right(self, qp, now)
    m.setattr(rc_requester.Requester, "_retry", wrong)


def loses_what_was_under_way_when_it_failed(m):
    right = rc_sending.RcSending.flush

    def wrong(self, number, now):
        qp = self.qps[number]
        qp.head += qp.dead and qp.head < len(qp.requests)
        right(self, number, now)
    m.setattr(rc_sending.RcSending, "flush", wrong)


@pytest.mark.parametrize("patch", [
    takes_duplicates, naks_every_packet, acknowledges_one_too_many, counts_messages_wrong, forgets_the_last_byte_of_a_region, goes_back_to_the_message,
    overlooks_missing_responses, retries_once_more, loses_what_was_under_way_when_it_failed], ids=lambda f: f.__name__)
def test_a_broken_card_is_found(patch):
    engine = broken(patch)
    for seed in range(60):
        scenario = make_scenario(seed)
        if difference(scenario, engine(scenario), model(scenario)):
            return
    pytest.fail(f"a card that {patch.__name__} would pass")


def test_a_difference_is_small():
    with pytest.raises(Difference) as found:
        fuzz(3000, 1, left=broken(counts_messages_wrong), right=model)
    assert found.value.scenario.frames <= 4 and "sent to QP" in found.value.text


def test_shrinking_keeps_the_difference():
    scenario = make_scenario(3, frames=40)
    marked = scenario.steps[17]
    small, text = shrink(scenario, lambda s: "here" if marked[:1] in [step[:1] for step in s.steps] else None)
    assert small.steps == [marked[:1]] and text == "here"


def test_command_line(capsys):
    options = ["--frames", "50", "--seed", "5"]
    assert main(options, left=model) == 0
    assert "no difference" in capsys.readouterr().out
    assert main([*options, "--frames", "5000"], left=broken(naks_every_packet)) == 1
    said = capsys.readouterr().err
    assert "difference: seed" in said and "frame of" in said
