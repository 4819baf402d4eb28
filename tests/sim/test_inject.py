"""Fault injection: that a flip is a flip of the state and nothing else, that runs are judged as they should be, and the same each time.

The negative controls are flips of which it is known what they do, and broken judges."""

import json

import pytest

from optinic.config import preset
from sim.device import SimDevice, SimError
from sim.inject.campaign import TARGETS, Flip, InjectError, Targets, run_batch, run_flips
from sim.inject.outcome import CLASSES, FAILURES
from sim.inject.state import bits_of, place, state_of
from sim.inject.summary import campaign, summary, wilson
from sim.inject import workload

pytestmark = pytest.mark.rtl

CFG = preset("tiny")
BOTH = pytest.mark.parametrize("transport", ["xp", "rc"])
VERILOG = r"""
module \top.inner (clk, d, q);
  input clk;
  wire clk;
  input [3:0] d;
  wire [3:0] d;
  output [3:0] q;
  reg [3:0] q = 4'h0;
  reg [7:0] ram [15:0];
  reg [7:0] _0_;
  always @(posedge clk) begin
    _0_ <= ram[d];
    ram[q] <= {d, q};
  end
  always @(posedge clk)
    q <= d;
endmodule
module top(clk, d, out__q);
  input clk;
  wire clk;
  input [3:0] d;
  wire [3:0] d;
  output [3:0] out__q;
  wire [3:0] out__q;
  reg \odd$1  = 1'h0;
  always @(posedge clk)
    \odd$1  <= d[0];
  \top.inner  inner (
    .clk(clk),
    .d(d),
    .q(out__q)
  );
endmodule
"""


def outcomes(flips, transport="xp", seed="known places", **options):
    """{key: class} of a dict of flips."""
    cfg, found = CFG.with_(transport=transport, **options), {}
    run_flips(cfg, Targets.of(cfg), seed, flips, lambda key, record: found.__setitem__(key, record))
    assert found.keys() == flips.keys()
    return found


# -- where state is -----------------------------------------------------------------------------------


def test_state_is_found_in_the_verilog():
    cells, nets = state_of(VERILOG, "top")
    assert {(c.name, c.bits, c.rows, c.table) for c in cells} == {
        ("odd$1", 1, None, False), ("inner.q", 4, None, False), ("inner.ram", 8, 16, False), ("inner._0_", 8, None, False)}
    assert bits_of(VERILOG, "top") == {"tables": 0, "buffers": 128, "registers": 13}
    header = """
        VL_OUT8(out___05Fq,3,0);
        CData/*0:0*/ top__DOT__odd__0241;
        CData/*7:0*/ top__DOT__inner__DOT___0_;
        VlUnpacked<CData/*7:0*/, 16> top__DOT__inner__DOT__ram;
"""
    members = {c.name: c.member for c in place(cells, nets, "top", header)}
    # the inner register is kept under the name of the port that it is connected to
    assert members == {"odd$1": "top__DOT__odd__0241", "inner.q": "out___05Fq", "inner.ram": "top__DOT__inner__DOT__ram",
                       "inner._0_": "top__DOT__inner__DOT___0_"}
    assert {c.name: c.member for c in place(cells, nets, "top", "")} == dict.fromkeys(members)


@BOTH
def test_a_flip_turns_one_bit_over_and_a_second_one_turns_it_back(transport):
    """Of every register and memory of the card; and what depends on it is evaluated anew, or the card wouldn't stop."""
    with SimDevice(CFG.with_(transport=transport), cells=True) as device:
        device.run(2000)
        cells = device.cells()
        kinds = {(cell.rows is None, cell.table) for cell in cells}
        assert len(cells) > 1500 and kinds == {(True, False), (False, True), (False, False)}
        for number, cell in enumerate(cells):
            for row, bit in {(0, 0), ((cell.rows or 1) - 1, cell.bits - 1)}:
                before = device.bit(number, row, bit)
                device.flip(number, row, bit)
                assert device.bit(number, row, bit) == 1 - before, cell
                device.flip(number, row, bit)
                assert device.bit(number, row, bit) == before, cell
        for wrong in ((len(cells), 0, 0), (0, 0, 4096), (0, 1 << 20, 0)):
            with pytest.raises(SimError):
                device.flip(*wrong)
        # a register that is on its way to the host: the register bank's copy of PKEY
        number = next(i for i, cell in enumerate(cells) if cell.name == "registers.rw_pkey")
        device.flip(number, 0, 3)
        assert device.reg_read(0x48) == 0xFFFF ^ 8


def test_a_device_without_cells_has_none():
    with SimDevice(CFG) as device:
        assert device.cells() == []
        with pytest.raises(SimError, match="cells=True"):
            device.flip(0, 0, 0)


# -- what a run comes to --------------------------------------------------------------------------------


@BOTH
def test_a_run_without_a_flip_is_clean(transport):
    """Whenever everything is evaluated anew without a change: the judge finds nothing where nothing is."""
    found = outcomes({i: Flip(None, when=i / 4) for i in range(5)}, transport)
    assert {record["class"] for record in found.values()} == {"masked"}


@pytest.fixture(scope="module")
def known():
    """What becomes of a bit of each context, region and completion queue of card 0, and of its clock: {place: (flip, record)}."""
    flips = {("qp", row): Flip("lookup.context.ram", row, 3, 0.2) for row in range(16)}
    flips |= {("region", row): Flip("resolve.regions.body.ram", row, 128 + 20, 0.1) for row in range(32)}
    flips |= {("cq", row): Flip("host_writer.cq_writer.context.ram", row, 20, 0.1) for row in range(8)}
    flips["time"] = Flip("clock.time", 0, 26, 0.3)
    found = outcomes(flips)
    return {key: (flips[key], found[key]) for key in flips}


def test_flips_of_which_the_end_is_known(known):
    """16 queue pairs of which 12 are in use, 32 regions of which one is, 8 completion queues of which 3 are: a flip in a row that nobody
    has is masked, one in a row in use is not."""
    cells = {cell.name: cell for cells in Targets.of(CFG).cells.values() for cell in cells}
    assert cells["lookup.context.ram"].rows == 16 and cells["resolve.regions.body.ram"].rows == 32
    contexts = [known["qp", row][1]["class"] for row in range(16)]
    assert contexts.count("masked") == 16 - workload.ROWS, contexts     # a bit of the QPN: frames are refused
    regions = [known["region", row][1]["class"] for row in range(32)]   # a bit of the bus address: data goes or comes from elsewhere
    assert sum(c != "masked" for c in regions) == 1 and set(regions) - {"masked"} <= {"silent", "detected", "hang"}, regions
    queues = [known["cq", row][1]["class"] for row in range(8)]         # completions are written elsewhere
    assert sum(c != "masked" for c in queues) == 2 and set(queues) - {"masked"} <= set(FAILURES), queues    # one has none after it
    assert known["time"][1]["class"] in FAILURES                        # 67 ms later: deadlines are over


def harmful(known):
    return {key: flip for key, (flip, record) in known.items() if record["class"] != "masked" and key != "time"}


def test_a_judge_that_sees_nothing_would_be_found_out(known, monkeypatch):
    """Negative control of the control: judges that don't look at memory and completions, or not at what has not ended."""
    from sim.inject import outcome
    monkeypatch.setattr(outcome, "fine", lambda m: True)
    for name in ("_wrong_completions", "_wrong_memory", "_stuck"):
        monkeypatch.setattr(outcome, name, lambda work: [])
    found = outcomes(harmful(known))
    assert not {record["class"] for record in found.values()} & set(FAILURES)


def test_secded_corrects_and_says_so(known):
    """What did harm above does none, and a counter has it."""
    found = outcomes(harmful(known), table_protection="secded")
    assert {(record["class"], record["reason"]) for record in found.values()} == {("corrected", "table_corrected")}, found


# -- the campaign ---------------------------------------------------------------------------------------


def test_a_run_is_the_same_alone_and_in_its_batch():
    targets, alone, together = Targets.of(CFG), [], []
    run_batch(CFG, targets, 5, "registers", range(3), together.append)
    run_batch(CFG, targets, 5, "registers", [1], alone.append)
    key = lambda records: {r["index"]: {k: v for k, v in r.items() if k != "at_ns"} for r in records}
    assert key(together)[1] == key(alone)[1] and key(together).keys() == {0, 1, 2}
    assert targets.draw(5, "registers", 1) == targets.draw(5, "registers", 1) != targets.draw(6, "registers", 1)


def test_bits_are_drawn_with_equal_chances():
    targets = Targets.of(CFG)
    for target in TARGETS:
        draws = [targets.draw(1, target, i) for i in range(4000)]
        cells = {c.name: c for c in targets.cells[target]}
        big = max(cells.values(), key=lambda c: c.bits * (c.rows or 1))
        share = big.bits * (big.rows or 1) / targets.bits(target)
        hits = sum(d.cell == big.name for d in draws) / len(draws)
        assert abs(hits - share) < 4 * (share * (1 - share) / len(draws)) ** 0.5
        assert all(0 <= d.row < (cells[d.cell].rows or 1) and 0 <= d.bit < cells[d.cell].bits and 0 <= d.when < 1 for d in draws)


def test_a_campaign_is_resumed_and_added_to(tmp_path):
    done = []
    first = campaign(CFG, "tiny", targets=("tables",), runs=4, seed=3, folder=tmp_path, count=lambda n, total: done.append((n, total)))
    assert done[0] == (0, 4) and done[-1] == (4, 4) and sum(first["targets"]["tables"]["classes"].values()) == 4
    kept, = tmp_path.glob("*.jsonl")
    lines = kept.read_text().splitlines()
    kept.write_text("\n".join(lines[:2]) + "\n" + lines[2][:20])       # it was interrupted while it wrote
    done.clear()
    again = campaign(CFG, "tiny", targets=("tables",), runs=4, seed=3, folder=tmp_path, count=lambda n, total: done.append((n, total)))
    assert done[0] == (2, 4) and again == first
    json.dumps(again)
    assert set(again["targets"]["tables"]["classes"]) == set(CLASSES)


def test_too_small_a_card_is_refused():
    with pytest.raises(InjectError, match="num_qps=4"):
        campaign(CFG.with_(num_qps=4), "tiny", runs=1)


def test_wilson():
    """Against values of R's binom::binom.wilson, and at the ends."""
    found = wilson(10, 100)
    assert found["low"] == pytest.approx(0.05523, abs=2e-5) and found["high"] == pytest.approx(0.17437, abs=2e-5)
    assert wilson(0, 50)["low"] == 0 and wilson(0, 50)["high"] == pytest.approx(0.07135, abs=2e-5)
    assert wilson(50, 50)["high"] == pytest.approx(1) and wilson(0, 0)["share"] is None


def test_shares_leave_out_runs_of_which_nothing_is_known():
    cells = Targets.of(CFG)
    record = lambda i, kind: {"target": "tables", "index": i, "cell": "lookup.posted.ram", "class": kind, "reason": ""}
    found = summary(CFG, "tiny", "0" * 64, cells, 1, [record(0, "silent"), record(1, "masked"), record(2, "error")])
    table = found["targets"]["tables"]
    assert (table["runs"], table["errors"], table["failure"]["share"]) == (2, 1, 0.5)
    assert table["groups"]["lookup.posted"]["runs"] == 2 and table["groups"]["lookup.context"]["runs"] == 0


def test_the_judge_waits_for_every_deadline_in_a_row():
    """A receive's deadline begins when it is its QP's oldest: two of one QP need two, and a READ takes none."""
    work = workload.Workload.__new__(workload.Workload)
    work.cfg = preset("tiny")
    message = lambda op, pair, side: workload.Message(op, 1 - side, pair, 64, (1 - side, 0), (side, 0), 0)
    send, read = workload.IBV_WR_SEND, workload.IBV_WR_RDMA_READ
    spread = [message(send, pair, side) for pair in (0, 1) for side in (0, 1)]
    one, two = workload.DEADLINE_NS + workload.LATE_NS, 2 * workload.DEADLINE_NS + workload.LATE_NS
    assert work._bound(spread) == work._bound([*spread, message(read, 0, 0)]) == work._bound([message(read, 0, 0)]) == one
    assert work._bound([*spread, message(send, 1, 0)]) == two
    work.cfg = preset("tiny", transport="rc")
    assert work._bound(spread) == workload.RELIABLE_NS
