"""`run`: one line for every mistake, OUT.json whole or not at all, and XP traffic with its expectations written out."""

import hashlib
import json

import pytest

from sim.frames import build, cnp, flip, uc_send, xp_read, xp_send, xp_write
from sim.replay import ReplayError, execute, run
from sim.replay.capture import Frame, read_capture, write_pcap
from sim.replay.result import Result, report, settle
from sim.replay.schedule import arrivals
from sim.replay.setup import parse_setup
from sim.models.nic import Completion

ENGINES = pytest.mark.parametrize("engine", ["model", pytest.param("rtl", marks=pytest.mark.rtl)])
KEY, VA = 0x1234, 65536
RIGHT = dict(generation=3)
SETUP = {
    "regions": [{"rkey": KEY, "va": VA, "length": 65536, "access": ["local_write", "remote_write"], "pd": 1, "fill": "index"}],
    "qps": [{"qpn": 17, "type": "xp", "pd": 1, "mtu": 1024, "generation": 3, "peer": {"ipv4": "10.0.0.2"},
             "receives": [{"va": VA + 4096 * i, "length": 4096, "lkey": KEY, "timeout_us": 100} for i in range(5)]}],
    "end_us": 1000,
}


@pytest.fixture
def files(tmp_path):
    """Writes a setup and a capture; returns a function that replays them."""
    def replay(setup, frames, engine="model", **more):
        (tmp_path / "setup.json").write_text(json.dumps(setup))
        write_pcap(tmp_path / "frames.pcap", [Frame(data, 10**9 + time) for data, time in frames])
        out = tmp_path / "out.json"
        run(tmp_path / "setup.json", tmp_path / "frames.pcap", out, engine, **more)
        return json.loads(out.read_text())
    return replay


def send(payload, **fields):
    return xp_send(17, payload, **RIGHT | fields)


# -- traffic -----------------------------------------------------------------------------------------------

@ENGINES
def test_xp(files, engine):
    us = 1000
    first, second = bytes(range(100)), bytes(range(100, 150))
    lone = b"unreliable but placed"
    frames = [
        (send(second, msg_len=150, offset=100, tag=7, imm=99), 0),
        (send(first, msg_len=150, tag=7, imm=99), 2 * us),                      # 0: complete, out of order
        (send(first, msg_len=150, seq=0), 4 * us),                              # late
        (flip(send(first, seq=1), 700), 6 * us),                                # icrc
        (send(first, msg_len=150, seq=1), 8 * us),
        (send(b"x", seq=3, tos=3), 10 * us),                                    # 1 preempted, 2 empty, 3 complete
        (xp_write(17, lone, VA + 30_000, KEY, **RIGHT), 12 * us),
        (cnp(17), 14 * us),
        (b"\xff" * 12 + b"\x08\x06" + bytes(28), 16 * us),                      # ARP
        (send(b"x", seq=9), 18 * us),                                           # no_receive
        (send(b"abc", seq=4, msg_len=6), 20 * us),
        (send(b"abc", seq=4, msg_len=6), 300 * us),                             # after the deadline: late
    ]
    out = files(SETUP, frames, engine)
    placed = lambda size: {"verdict": "placed", "qpn": 17, "bytes": size}
    dropped = lambda reason: {"verdict": "dropped", "reason": reason}
    assert out["frames"] == [{"index": i} | entry for i, entry in enumerate((
        placed(50), placed(100), dropped("late"), dropped("icrc"), placed(100), placed(1), placed(len(lone)),
        {"verdict": "consumed", "qpn": 17, "kind": "cnp"}, {"verdict": "passed"}, dropped("no_receive"), placed(3),
        dropped("late")))]
    keys = ("index", "opcode", "status", "cause", "byte_len", "msg_len", "imm", "tag")
    assert [tuple(c[k] for k in keys) for c in out["completions"]] == [
        (0, "send_imm", "success", "complete", 150, 150, 99, 7),
        (1, "send", "partial", "preempted", 100, 150, None, 0),
        (2, None, "partial", "preempted", 0, 0, None, 0),
        (3, "send", "success", "complete", 1, 1, None, 0),
        (4, "send", "partial", "timeout", 3, 6, None, 0)]
    assert all(c["qpn"] == 17 and c["queue"] == "receive" for c in out["completions"])
    times = [c["time_us"] for c in out["completions"]]
    for time, expected in zip(times, (2, 10, 10, 10, 110)):
        assert expected <= time <= expected + 3
    memory = bytearray(i % 251 for i in range(65536))
    for at, data in ((0, first + second), (4096, first), (3 * 4096, b"x"), (4 * 4096, b"abc"), (30_000, lone)):
        memory[at:at + len(data)] = data
    assert out["regions"] == [{"rkey": KEY, "sha256": hashlib.sha256(memory).hexdigest()}]
    counters = {k: v for k, v in out["counters"].items() if v}
    assert counters == {"placed_bytes": 50 + 100 + 100 + 1 + len(lone) + 3, "frames_placed": 6, "frames_consumed": 1,
                        "frames_passed": 1, "drop_late": 2, "drop_icrc": 1, "drop_no_receive": 1, "cnp_received": 1,
                        "cnp_due": 1, "deadlines": 1, "preempted": 1}


@ENGINES
def test_what_the_card_sends(files, tmp_path, engine):
    """With --tx-pcap: the answers to a READ, and a CNP for a mark, to where the setup says that the peer is, at the capture's times."""
    setup = json.loads(json.dumps(SETUP))
    setup["regions"][0]["access"].append("remote_read")
    setup["qps"][0]["peer"] |= {"mac": "02:00:00:00:00:77", "qpn": 0x1234, "generation": 9}
    frames = [(xp_read(17, VA, KEY, 2500, **RIGHT), 0), (send(b"x", tos=3), 50_000)]
    out = files(setup, frames, engine, tx_pcap=tmp_path / "sent.pcap")
    assert [f["verdict"] for f in out["frames"]] == ["consumed", "placed"]
    sent = read_capture(tmp_path / "sent.pcap")
    assert [f.data[42] for f in sent] == [0xF0] * 3 + [0x81]
    assert {f.data[:12].hex() for f in sent} == {"020000000077" "020000000001"}
    assert {f.data[47:50].hex() for f in sent} == {"001234"}
    at = [f.time - 10**9 for f in sent]
    assert at == sorted(at) and 0 < at[0] < at[2] < 4000 and 50_000 < at[3] < 54_000


@ENGINES
def test_deadlines_without_any_packet(files, engine):
    out = files(SETUP | {"end_us": 350.5}, [(cnp(18), 0)], engine)
    assert [(c["index"], c["cause"]) for c in out["completions"]] == [(0, "timeout"), (1, "timeout"), (2, "timeout")]
    for i, c in enumerate(out["completions"], 1):
        assert 100 * i <= c["time_us"] <= 100 * i + 3 * i


@ENGINES
def test_seconds_of_silence(files, engine):
    # A receive that waits 80 ms, and frames seconds apart: what nobody does anything in is not simulated.
    setup = json.loads(json.dumps(SETUP)) | {"end_us": 10e6}
    for r, timeout in zip(setup["qps"][0]["receives"], (80_000, None, 100, None, None)):
        r["timeout_us"] = timeout
        if timeout is None:
            del r["timeout_us"]
    out = files(setup, [(cnp(17), 0), (send(b"a", seq=1), 3 * 10**9), (send(b"b", seq=3), 7 * 10**9)], engine)
    assert [f["verdict"] for f in out["frames"]] == ["consumed", "placed", "placed"]
    assert [(c["index"], c["cause"], round(c["time_us"], -3)) for c in out["completions"]] == [
        (0, "timeout", 80_000), (1, "complete", 3e6), (2, "timeout", 3e6), (3, "complete", 7e6)]


@ENGINES
def test_both_engines_take_odd_captures(files, engine):
    out = files(SETUP, [], engine)
    assert out["frames"] == [] and [c["cause"] for c in out["completions"]] == ["timeout"] * 5
    frames = [(b"", 0), (b"\x01", 0), (uc_send(17, b"x"), 0), (send(b"a", seq=1), -5000), (bytes(9000), 10)]
    out = files(SETUP, frames, engine)
    assert [f.get("reason", f["verdict"]) for f in out["frames"]] == ["runt", "runt", "placed", "placed", "length"]


@ENGINES
def test_back_to_back(files, engine):
    # A gap in cycles takes the place of the frames' own times, a second apart.
    setup = SETUP | {"frame_gap_cycles": 5, "end_us": 0}
    out = files(setup, [(send(b"a", seq=i), i * 10**9) for i in range(5)], engine)
    assert [(c["index"], c["cause"]) for c in out["completions"]] == [(i, "complete") for i in range(5)]
    assert out["completions"][-1]["time_us"] < 5


@ENGINES
def test_regions_that_share_bytes(files, engine):
    region = SETUP["regions"][0]
    setup = SETUP | {"regions": [region, region | {"rkey": 7, "va": VA + 100, "length": 50, "fill": 0xAA}]}
    out = files(setup, [(xp_write(17, b"zz", VA + 110, KEY, **RIGHT), 0)], engine)
    memory = bytearray(i % 251 for i in range(65536))
    memory[100:150] = b"\xaa" * 10 + b"zz" + b"\xaa" * 38
    assert [r["sha256"] for r in out["regions"]] == [hashlib.sha256(m).hexdigest() for m in (memory, memory[100:150])]


@ENGINES
def test_a_buffer_that_runs_over_the_last_address(files, engine):
    # Behind address 2^64 - 1 there is nothing, least of all the region that begins at 0.
    setup = json.loads(json.dumps(SETUP))
    setup["regions"][0] |= {"va": 0, "fill": 0xEE}
    setup["qps"][0]["receives"] = [{"va": 2**64 - 2, "length": 4096, "lkey": KEY}]
    out = files(setup, [(send(b"abcd", msg_len=8, offset=at), at * 1000) for at in (0, 4)], engine)
    assert [f.get("reason") for f in out["frames"]] == ["bounds", "bounds"]
    assert out["regions"][0]["sha256"] == hashlib.sha256(b"\xee" * 65536).hexdigest()


@ENGINES
def test_payload_beyond_the_mtu(files, engine):
    # Judged for what the queue pair would place; of an opcode that it doesn't take the payload's length means nothing.
    frames = [build(0x64, 17, payload=bytes(1032)), uc_send(17, bytes(1025)), send(bytes(1024)), build(0x64, 18, payload=bytes(1032))]
    out = files(SETUP, [(f, i * 2000) for i, f in enumerate(frames)], engine)
    assert [f.get("reason") for f in out["frames"]] == ["opcode", "length", None, "qpn"]


@ENGINES
def test_a_jump_over_a_full_ring(files, engine):
    setup = json.loads(json.dumps(SETUP))
    setup["qps"][0]["receives"] = [{"va": VA, "length": 64, "lkey": KEY}] * 256
    out = files(setup, [(send(b"a", seq=255), 0), (send(b"a", seq=256), 1000)], engine)
    assert [f.get("reason", f["verdict"]) for f in out["frames"]] == ["placed", "no_receive"]
    assert [c["index"] for c in out["completions"]] == list(range(256))
    assert [c["status"] for c in out["completions"]] == ["partial"] * 255 + ["success"]


# -- what the front end does ---------------------------------------------------------------------------------

def test_out_json_is_whole_or_not_there(tmp_path, files):
    out = tmp_path / "out.json"
    with pytest.raises(ReplayError):
        files({"foo": 1}, [])
    assert not out.exists()
    files(SETUP, [])
    before = out.read_text()
    with pytest.raises(ReplayError):
        files({"foo": 1}, [])
    assert out.read_text() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["frames.pcap", "out.json", "setup.json"]


@pytest.mark.parametrize("setup, capture, out, engine, text", [
    ("none.json", "a.pcap", "out.json", "model", "none.json: No such file"),
    ("a.json", "none.pcap", "out.json", "model", "none.pcap: No such file"),
    ("a.json", "a.json", "out.json", "model", "a.json: not a pcap or pcapng file"),
    ("a.pcap", "a.pcap", "out.json", "model", "a.pcap: not "),
    ("a.json", "a.pcap", "no/such/folder/out.json", "model", "out.json: No such file"),
    ("a.json", "a.pcap", "out.json", "hardware", "engine 'hardware' is unknown; known are rtl, model"),
])
def test_one_line_says_what_is_wrong(tmp_path, setup, capture, out, engine, text):
    (tmp_path / "a.json").write_text(json.dumps(SETUP))
    write_pcap(tmp_path / "a.pcap", [])
    with pytest.raises(ReplayError, match=text) as error:
        run(tmp_path / setup, tmp_path / capture, tmp_path / out, engine)
    assert "\n" not in str(error.value)


def test_times_of_frames():
    setup = parse_setup({"config": {"preset": "small"}})       # 16 bytes in 4 ns
    frames = [Frame(bytes(64), 1000), Frame(bytes(64), 1004), Frame(bytes(1), 2000), Frame(bytes(17), 500)]
    assert list(arrivals(frames, setup)) == [(0, 16), (16, 32), (1000, 1004), (1004, 1012)]
    setup = parse_setup({"config": {"preset": "small"}, "frame_gap_cycles": 3})
    assert list(arrivals(frames, setup)) == [(0, 16), (28, 44), (56, 60), (72, 80)]


def test_simultaneous_timeouts_are_listed_by_queue_pair():
    def end(qpn, time, cause="timeout"):
        return Completion(qpn, 0, None, "partial", cause, 0, 0, None, 0, time)
    a, b, c, d, e = end(9, 1000), end(5, 1500), end(7, 9000), end(8, 9100, "complete"), end(6, 9200)
    assert settle([a, b, c, d, e]) == [b, a, c, d, e]


def test_counters_are_all_there():
    result = execute(parse_setup({}), [], "model")
    assert isinstance(result, Result)
    names = report(result)["counters"]
    assert set(names.values()) == {0} and {"drop_runt", "drop_overflow", "placed_bytes", "preempted"} <= set(names)


def test_progress_is_told():
    told = []
    execute(parse_setup({}), [Frame(build(0x24, 1), 0)] * 3, "model", lambda done, total: told.append((done, total)))
    assert told == [(1, 3), (2, 3), (3, 3)]
