"""Random traffic on the card and on the model; and that the comparison would see what it is there to see."""

from dataclasses import replace
import os

import pytest

from sim.fuzz import Difference, difference, fuzz, keep, main, model, shrink
from sim.models import nic, wire
from sim.models.message import Message
from sim.replay import execute
from sim.replay.capture import read_capture
from sim.replay.setup import read_setup
from sim.scenario import make_scenario
from tests.fuzz.broken import breaker

FRAMES = 3000
SOAK_FRAMES = int(os.environ.get("OPTINIC_SOAK_FRAMES", "100000"))


@pytest.mark.rtl
@pytest.mark.parametrize("knobs", [{}, {"arrival_map": True, "num_qps": 128, "open_messages": 16}], ids=["default", "arrival_map, pool"])
def test_card_and_model_agree(seed, knobs):
    frames, _, verdicts = fuzz(FRAMES, seed, "small", **knobs)
    assert frames >= FRAMES and verdicts["placed"] > FRAMES / 10
    assert len(verdicts) > 15       # most reasons came up


@pytest.mark.rtl
@pytest.mark.soak
@pytest.mark.parametrize("preset, knobs", [("tiny", {}), ("small", {}), ("small", {"data_width": 512, "ipv6": False}),
                                           ("small", {"data_width": 256, "uc": False, "vlan": False}), ("c100g", {}),
                                           ("tiny", {"arrival_map": True}),
                                           ("small", {"num_qps": 128, "open_messages": 16}), ("small", {"data_width": 512, "arrival_map": True})])
def test_soak(seed, preset, knobs):
    fuzz(SOAK_FRAMES, seed, preset, **knobs)


# -- scenarios -----------------------------------------------------------------------------------------------

def test_a_seed_makes_one_scenario():
    assert make_scenario(7, frames=60) == make_scenario(7, frames=60)
    assert make_scenario(7, frames=60).frames != make_scenario(8, frames=60).frames


def test_scenarios_meet_everything():
    # Nothing that a card may answer is left to luck: each verdict, reason and cause comes up in a few thousand frames.
    verdicts, causes = set(), set()
    for seed in range(40):
        scenario = make_scenario(seed)
        result = model(scenario)
        verdicts |= {v.reason or v.verdict for v in result.verdicts}
        causes |= {(c.opcode, c.cause) for c in result.completions}
    unused = {"state", "psn", "sequence", "overflow"}       # not in the hands of the traffic, or not of this transport
    assert verdicts == {"placed", "passed", "consumed", *nic.REASONS} - unused
    opcodes = ("send", "send_imm", "write_imm")
    assert causes >= {(o, c) for o in opcodes for c in ("complete", "preempted", "timeout")}
    assert causes >= {(None, "preempted"), (None, "timeout")}


def test_scenarios_use_their_arrival_maps():
    # Packets that are noted, packets beyond their row, and rows that come round.
    noted = beyond = used_again = 0
    right = nic.ArrivalMap.note

    def note(self, sequence, piece):
        nonlocal noted, beyond, used_again
        noted, beyond = noted + (piece < self.pieces), beyond + (piece >= self.pieces)
        used_again += piece < self.pieces and sequence >= self.rows
        right(self, sequence, piece)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nic.ArrivalMap, "note", note)
        for seed in range(20):
            make_scenario(seed, arrival_map=True)       # asks the model on its way
    assert noted > 500 and beyond > 50 and used_again > 20, (noted, beyond, used_again)


def test_no_frame_races_a_deadline():
    # A card that is a hundred microseconds slower with each frame's verdict gives the same ones.
    for seed in range(15):
        scenario = make_scenario(seed)
        slow = replace(scenario, frames=[replace(f, time=f.time + 100_000 * (i > 0)) for i, f in enumerate(scenario.frames)])
        assert model(slow).verdicts == model(scenario).verdicts, seed


# -- the comparison sees what it should ----------------------------------------------------------------------

broken = breaker(model)


def counts_bytes_only(m):
    m.setattr(Message, "complete", property(lambda self: self.placed is not None and self.byte_len == self.placed.msg_len))


def forgets_the_last_byte_of_a_region(m):
    right = nic.NicModel._find_memory

    def wrong(self, qp, packet):
        address, reason = right(self, qp, packet)
        region = self.regions.get(packet.rkey)
        if address is not None and packet.write and address + len(packet.payload) == region.va + region.length:
            return None, "bounds"
        return address, reason
    m.setattr(nic.NicModel, "_find_memory", wrong)


def wraps_at_the_top_of_memory(m):
    right = nic.NicModel._find_memory

    def wrong(self, qp, packet):
        if not packet.write and packet.payload:
            return right(self, qp, replace(packet, op=0x0A, rkey=qp.receives[qp.head].lkey,
                                           va=(qp.receives[qp.head].va + packet.offset) % (1 << 64)))
        return right(self, qp, packet)
    m.setattr(nic.NicModel, "_find_memory", wrong)


def takes_any_generation(m):
    right = nic.NicModel._refused_by_qp
    m.setattr(nic.NicModel, "_refused_by_qp", lambda self, qp, packet: None
              if (reason := right(self, qp, packet)) == "generation" else reason)


def keeps_the_clock_of_the_old_head(m):
    right = nic.NicModel._complete

    def wrong(self, qp, *args, **kwargs):
        deadline = qp.deadline
        right(self, qp, *args, **kwargs)
        if deadline is not None and qp.deadline is not None:
            qp.deadline = max(deadline, self.completions[-1].time // 64 + 1)
            nic.heappush(self._alarms, (qp.deadline, qp.order, qp.number, qp.head))
    m.setattr(nic.NicModel, "_complete", wrong)


def completes_nothing_between(m):
    right = nic.NicModel._find_message

    def wrong(self, qp, packet, now):
        before = len(self.completions)
        reason = right(self, qp, packet, now)
        del self.completions[before + 1:]
        return reason
    m.setattr(nic.NicModel, "_find_message", wrong)


def lets_a_refused_packet_move_nothing(m):
    right = nic.NicModel.frame

    def wrong(self, data, now):
        packet = wire.inspect(data, self.rules)
        qp = self.qps.get(packet.qpn)
        if qp and not packet.reason and packet.kind == "xp" and packet.tracked and packet.payload and not packet.write \
                and qp.head <= packet.seq < len(qp.receives) and not self._refused_by_qp(qp, packet) \
                and packet.offset + len(packet.payload) > qp.receives[packet.seq].length:
            self.advance(now)
            self._counts["drop_bounds"] += 1
            return nic.Verdict("dropped", "bounds")
        return right(self, data, now)
    m.setattr(nic.NicModel, "frame", wrong)


def writes_one_byte_too_many(m):
    right = nic.NicModel._place

    def wrong(self, qp, packet, address, now):
        verdict = right(self, qp, packet, address, now)
        if len(packet.payload) % 64 == 63:
            try:
                self.memory.write(address + 63, b"\x5a")
            except IndexError:
                pass
        return verdict
    m.setattr(nic.NicModel, "_place", wrong)


def forgets_a_counter(m):
    m.setattr(nic.NicModel, "counters", property(lambda self: {n: self._counts[n] * (n != "cnp_due") for n in nic.COUNTERS}))


def notes_what_is_late(m):
    right = nic.NicModel._find_message

    def wrong(self, qp, packet, now):
        reason = right(self, qp, packet, now)
        if reason == "late" and qp.arrivals and packet.payload:
            qp.arrivals.note(packet.seq, packet.offset // qp.mtu)
        return reason
    m.setattr(nic.NicModel, "_find_message", wrong)


@pytest.mark.parametrize("patch", [
    notes_what_is_late, counts_bytes_only, forgets_the_last_byte_of_a_region, wraps_at_the_top_of_memory, takes_any_generation,
    keeps_the_clock_of_the_old_head, completes_nothing_between, lets_a_refused_packet_move_nothing,
    writes_one_byte_too_many, forgets_a_counter], ids=lambda f: f.__name__)
def test_a_broken_card_is_found(patch):
    engine = broken(patch)
    for seed in range(120):
        scenario = make_scenario(seed, arrival_map=patch is notes_what_is_late)
        if difference(engine(scenario), model(scenario)):
            return
    pytest.fail(f"a card that {patch.__name__} would pass")


def test_a_difference_is_small_and_kept(tmp_path):
    with pytest.raises(Difference) as found:
        fuzz(3000, 1, left=broken(takes_any_generation), right=model)
    scenario = found.value.scenario
    assert len(scenario.frames) <= 3
    keep(scenario, tmp_path)
    again = execute(read_setup(tmp_path / "setup.json"), read_capture(tmp_path / "frames.pcap"), "model")
    assert not difference(again, model(scenario))
    assert difference(broken(takes_any_generation)(scenario), again)


def test_shrinking_keeps_the_difference():
    scenario = make_scenario(3, frames=40)
    marked = scenario.frames[17]
    small, text = shrink(scenario, lambda s: "here" if marked in s.frames else None)
    assert small.frames == [scenario.frames[0], marked] and text == "here"


def test_command_line(capsys, tmp_path):
    options = ["--frames", "50", "--seed", "5", "--keep", str(tmp_path)]
    assert main(options, left=model) == 0
    assert "no difference" in capsys.readouterr().out
    assert main([*options, "--frames", "5000"], left=broken(takes_any_generation)) == 1
    said = capsys.readouterr().err
    folder, = tmp_path.glob("seed-*")
    assert f"optinic replay --setup {folder}/setup.json" in said and "frame 0: t=0 ns" in said
