"""SETUP.json: the documented one is taken, and every mistake is named by its path."""

from copy import deepcopy
import json

import pytest

from sim.replay.errors import ReplayError
from sim.replay.setup import parse_setup, read_setup

EXAMPLE = {
    "config": {"preset": "small", "transport": "xp", "data_width": 512, "num_qps": 64},
    "port": {"mac": "02:00:00:00:00:01", "ipv4": "10.0.0.1", "ipv6": "fd00::1"},
    "regions": [
        {"rkey": 4660, "va": 65536, "length": 1048576, "access": ["local_write", "remote_write", "remote_read"], "pd": 1, "fill": 0}
    ],
    "qps": [
        {"qpn": 17, "type": "xp", "pd": 1, "mtu": 1024, "generation": 3,
         "peer": {"mac": "02:00:00:00:00:02", "ipv4": "10.0.0.2", "qpn": 18},
         "expected_psn": 0,
         "receives": [{"va": 65536, "length": 4096, "lkey": 4660, "timeout_us": 100},
                      {"va": 65536, "length": 4096, "lkey": 4660}]}
    ],
    "frame_gap_cycles": 0,
    "end_us": 1000,
}


def changed(path, value):
    """The example with the value at `path` (keys and indices) set; None deletes it."""
    setup = deepcopy(EXAMPLE)
    *where, last = path
    place = setup
    for step in where:
        place = place[step]
    if value is None:
        del place[last]
    elif isinstance(place, list) and last == len(place):
        place.append(value)
    else:
        place[last] = value
    return setup


def test_example():
    setup = parse_setup(EXAMPLE)
    assert (setup.config.data_width, setup.config.num_qps, setup.end_ns) == (512, 64, 1_000_000)
    qp, = setup.qps
    assert (qp.qpn, qp.generation, str(qp.peer)) == (17, 3, "10.0.0.2")
    assert [r.timeout_ns for r in qp.receives] == [100_000, 0]
    assert setup.regions[0].content() == bytes(1048576)


def test_arrival_map():
    setup = changed(("qps", 0, "arrival_map"), {"pieces": 4, "rows": 2})
    setup["config"]["arrival_map"] = True
    qp, = parse_setup(setup).qps
    assert qp.arrival_map == (4, 2)
    setup["qps"][0]["type"] = "uc"
    with pytest.raises(ReplayError, match=r"qps\[0\].arrival_map: queue pairs of type 'uc' have none"):
        parse_setup(setup)


def test_little_is_needed():
    setup = parse_setup({})
    assert setup.regions == () and setup.qps == () and setup.end_ns == 0
    qp, = parse_setup({"qps": [{"qpn": 5, "peer": {"ipv6": "fe80::1"}}]}).qps
    assert (qp.type, qp.mtu, qp.pd, qp.generation, qp.receives) == ("xp", 1024, 0, 0, ())


def test_rc():
    setup = deepcopy(EXAMPLE) | {"config": {"transport": "rc"}, "port": {"ipv4": "10.9.9.9"}}
    qp = setup["qps"][0]
    del qp["type"]
    with pytest.raises(ReplayError, match=r"qps\[0\].receives\[0\].timeout_us: receives of a card of config.transport \"rc\" wait"):
        parse_setup(setup)
    del qp["receives"][0]["timeout_us"]
    qp |= {"expected_psn": 0xFFFFFF, "min_rnr_timer": 14, "traffic_class": 2}
    found = parse_setup(setup)
    assert found.config.rc and found.port == ("02:00:00:00:00:01", "10.9.9.9", "fd00::1")
    qp, = found.qps
    assert (qp.type, qp.expected_psn, qp.peer_mac, qp.peer_qpn, qp.min_rnr_timer, qp.traffic_class) == (
        "rc", 0xFFFFFF, "02:00:00:00:00:02", 18, 14, 2)
    setup["qps"][0]["type"] = "uc"
    assert parse_setup(setup).qps[0].type == "uc"


def test_fill_by_index():
    region = parse_setup(changed(("regions", 0, "fill"), "index")).regions[0]
    data = region.content()
    assert len(data) == region.length and all(data[i] == i % 251 for i in (0, 1, 250, 251, 502, region.length - 1))


def test_timeouts_never_shrink():
    qp, = parse_setup(changed(("qps", 0, "receives", 0, "timeout_us"), 0.0001)).qps
    assert qp.receives[0].timeout_ns == 1


REGION, QP, RECEIVE = ("regions", 0), ("qps", 0), ("qps", 0, "receives", 0)
MISTAKES = [
    (("foo",), 1, "foo: unknown key"),
    (("config",), [], "config: must be an object"),
    (("config", "preset"), "huge", "config.preset: \"huge\" is not a preset"),
    (("config", "preset"), 1, "config.preset"),
    (("config", "nums"), 1, "config.nums: unknown key"),
    (("config", "num_qps"), "64", "num_qps='64' is not of type int"),
    (("config", "num_qps"), True, "num_qps=True"),
    (("config", "num_qps"), 1 << 20, "outside 2..16384"),
    (("config", "data_width"), 100, "data_width=100 is not one of"),
    (("config", "transport"), "rc", r"qps\[0\].type: 'xp' is not one of rc, uc, which a card of config.transport 'rc' has"),
    (("config", "transport"), "tcp", "transport='tcp'"),
    (("config", "rq_entries"), 12, "not a power of two"),
    (("port",), 7, "port: must be an object, not 7"),
    (("port", "foo"), 1, "port.foo: unknown key"),
    (("port", "mac"), "02:00", "port.mac: '02:00' is not a MAC"),
    (("port", "ipv4"), "10.0.0", "port.ipv4: '10.0.0' is not an IPv4"),
    (("port", "ipv6"), "10.0.0.1", "port.ipv6: '10.0.0.1' is not an IPv6"),
    (("regions",), {}, "regions: must be a list"),
    (("regions", 1), 3, r"regions\[1\]: must be an object"),
    ((*REGION, "foo"), 1, r"regions\[0\].foo: unknown key"),
    ((*REGION, "rkey"), None, r"regions\[0\].rkey: is missing"),
    ((*REGION, "rkey"), "0x10", r"regions\[0\].rkey: must be a whole number, not \"0x10\""),
    ((*REGION, "rkey"), 1.5, r"regions\[0\].rkey: must be a whole number"),
    ((*REGION, "rkey"), True, r"regions\[0\].rkey: must be a whole number, not true"),
    ((*REGION, "rkey"), 1 << 32, r"regions\[0\].rkey: 4294967296 is outside"),
    ((*REGION, "va"), -1, r"regions\[0\].va: -1 is outside"),
    ((*REGION, "va"), 2**64 - 100, r"regions\[0\].length: the region ends beyond the last address.*at most 100"),
    ((*REGION, "length"), 0, r"regions\[0\].length: 0 is outside"),
    ((*REGION, "length"), 1 << 40, r"regions\[0\].length: .* holds in memory"),
    ((*REGION, "access"), "local_write", r"regions\[0\].access: must be a list"),
    ((*REGION, "access", 1), "write", r"regions\[0\].access\[1\]: \"write\" is not an access word"),
    ((*REGION, "access", 1), 3, r"regions\[0\].access\[1\]: 3 is not an access word"),
    ((*REGION, "pd"), 1 << 16, r"regions\[0\].pd: 65536 is outside"),
    ((*REGION, "fill"), 256, r"regions\[0\].fill: 256 is outside"),
    ((*REGION, "fill"), "random", r"regions\[0\].fill: 'random' is neither"),
    (("regions", 1), EXAMPLE["regions"][0], r"regions\[1\].rkey: 4660 is also the key of an earlier region"),
    ((*QP, "foo"), 1, r"qps\[0\].foo: unknown key"),
    ((*QP, "qpn"), None, r"qps\[0\].qpn: is missing"),
    ((*QP, "qpn"), 1 << 24, r"qps\[0\].qpn: 16777216 is outside"),
    ((*QP, "type"), "rc", r"qps\[0\].type: 'rc' is not one of xp, uc, which a card of config.transport 'xp' has"),
    ((*QP, "min_rnr_timer"), 32, r"qps\[0\].min_rnr_timer: 32 is outside 0..31"),
    ((*QP, "peer", "generation"), 256, r"qps\[0\].peer.generation: 256 is outside"),
    ((*QP, "type"), "ud", r"qps\[0\].type: 'ud' is not one of xp, uc, "),
    ((*QP, "mtu"), 1000, r"qps\[0\].mtu: 1000 is not one of 256"),
    ((*QP, "generation"), 256, r"qps\[0\].generation: 256 is outside"),
    ((*QP, "expected_psn"), 1 << 24, r"qps\[0\].expected_psn"),
    ((*QP, "peer"), None, r"qps\[0\].peer: is missing"),
    ((*QP, "peer", "ipv4"), None, r"qps\[0\].peer: must have exactly one of ipv4 and ipv6"),
    ((*QP, "peer", "ipv6"), "::1", r"qps\[0\].peer: must have exactly one of ipv4 and ipv6"),
    ((*QP, "peer", "ipv4"), "10.0.0.256", r"qps\[0\].peer.ipv4: '10.0.0.256'"),
    ((*QP, "peer", "ipv4"), 7, r"qps\[0\].peer.ipv4: must be a text"),
    ((*QP, "peer", "mac"), "nonsense", r"qps\[0\].peer.mac"),
    ((*QP, "peer", "port"), 1, r"qps\[0\].peer.port: unknown key"),
    ((*QP, "arrival_map"), {"pieces": 4, "rows": 2}, r"qps\[0\].arrival_map: needs config.arrival_map, which is off"),
    ((*QP, "arrival_map"), 4, r"qps\[0\].arrival_map: must be an object"),
    ((*QP, "arrival_map"), {"rows": 2}, r"qps\[0\].arrival_map.pieces: is missing"),
    ((*QP, "arrival_map"), {"pieces": 12, "rows": 2}, r"qps\[0\].arrival_map.pieces: 12 is not a power of two"),
    ((*QP, "arrival_map"), {"pieces": 4}, r"qps\[0\].arrival_map.rows: 1 is too small: each of the 2 receives"),
    ((*QP, "arrival_map"), {"pieces": 1 << 20, "rows": 1 << 15}, r"qps\[0\].arrival_map.rows: .* holds in memory"),
    ((*QP, "receives"), 1, r"qps\[0\].receives: must be a list"),
    ((*QP, "receives", 1, "foo"), 1, r"qps\[0\].receives\[1\].foo: unknown key"),
    ((*RECEIVE, "length"), 1 << 32, r"receives\[0\].length"),
    ((*RECEIVE, "lkey"), None, r"receives\[0\].lkey: is missing"),
    ((*RECEIVE, "timeout_us"), -1, r"receives\[0\].timeout_us: -1 is outside"),
    ((*RECEIVE, "timeout_us"), "100", r"receives\[0\].timeout_us: must be a number"),
    ((*RECEIVE, "timeout_us"), 2e8, r"receives\[0\].timeout_us: 200000000.0 is outside"),
    (("frame_gap_cycles",), -1, "frame_gap_cycles: -1 is outside"),
    (("frame_gap_cycles",), 1.0, "frame_gap_cycles: must be a whole number"),
    (("end_us",), "1", "end_us: must be a number"),
    (("end_us",), -5, "end_us: -5 is outside"),
]


@pytest.mark.parametrize("path, value, text", MISTAKES, ids=lambda v: ".".join(map(str, v)) if isinstance(v, tuple) else None)
def test_mistakes(path, value, text):
    with pytest.raises(ReplayError, match=text) as error:
        parse_setup(changed(path, value))
    assert "\n" not in str(error.value)


def test_not_an_object():
    with pytest.raises(ReplayError, match="the setup: must be an object"):
        parse_setup([])


@pytest.mark.parametrize("text, message", [
    ("{\n \"qps\": [,]}", "not JSON at line 2, column 10"),
    ("", "not JSON at line 1, column 1"),
    ("{\"end_us\": 1, \"end_us\": 2}", "'end_us' stands twice"),
    ("{\"end_us\": NaN}", "NaN is not a number"),
    ("{\"end_us\": 1e999}", "end_us: inf is outside"),
    ("[" * 100_000, "nested too deeply"),
    ("{\"end_us\": " + "9" * 5000 + "}", "thousands of digits"),
])
def test_bad_files(tmp_path, text, message):
    path = tmp_path / "setup.json"
    path.write_text(text)
    with pytest.raises(ReplayError, match=message) as error:
        read_setup(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_unreadable_files(tmp_path):
    with pytest.raises(ReplayError, match="No such file"):
        read_setup(tmp_path / "none.json")
    (tmp_path / "setup.json").write_bytes(b"{\"\xff\": 1}")
    with pytest.raises(ReplayError, match="not UTF-8 at byte 2"):
        read_setup(tmp_path / "setup.json")


# -- what must fit together ------------------------------------------------------------------------------

def with_qps(*qpns, **config):
    setup = deepcopy(EXAMPLE)
    setup["config"] |= config
    setup["qps"] = [setup["qps"][0] | {"qpn": qpn} for qpn in qpns]
    return setup


def test_queue_pairs_that_the_card_cannot_tell_apart():
    parse_setup(with_qps(1, 63, 0x123440))
    with pytest.raises(ReplayError, match=r"qps\[1\].qpn: 81 and the 17 of qps\[0\].*raise config.num_qps to 128"):
        parse_setup(with_qps(17, 81))
    parse_setup(with_qps(17, 81, num_qps=128))
    with pytest.raises(ReplayError, match="give each queue pair its own QPN"):
        parse_setup(with_qps(17, 17))
    with pytest.raises(ReplayError, match="share their low 6 bits.*; choose another QPN"):
        parse_setup(with_qps(17, 17 + (1 << 20)))
    with pytest.raises(ReplayError, match=r"qps\[0\].qpn: 63 has the index 63.*num_qps is 48; raise it to 64"):
        parse_setup(with_qps(63, num_qps=48))


def test_rings_grow_to_the_longest_list():
    receives = [EXAMPLE["qps"][0]["receives"][1]] * 300
    assert parse_setup(changed((*QP, "receives"), receives)).config.rq_entries == 512
    setup = changed((*QP, "receives"), receives)
    setup["config"]["rq_entries"] = 256
    with pytest.raises(ReplayError, match="config.rq_entries: 256 is too small: .* 300; give 512"):
        parse_setup(setup)
    with pytest.raises(ReplayError, match="config.rq_entries: .* 32769, and the largest card has 32768"):
        parse_setup(changed((*QP, "receives"), receives[:1] * 32769))


def test_tables_grow_for_regions_and_peers():
    regions = [EXAMPLE["regions"][0] | {"rkey": key, "length": 64} for key in range(40)]
    assert parse_setup(changed(("regions",), regions)).config.num_regions == 128
    setup = with_qps(*range(20), num_peers=16)
    for i, qp in enumerate(setup["qps"]):
        qp["peer"] = {"ipv4": f"10.0.1.{i}"}
    with pytest.raises(ReplayError, match="config.num_peers: 16 is too small"):
        parse_setup(setup)


def test_what_the_card_lacks():
    with pytest.raises(ReplayError, match=r"qps\[0\].mtu: 1024 exceeds config.mtu_max=512"):
        parse_setup(with_qps(17, mtu_max=512))
    setup = with_qps(17, uc=False)
    setup["qps"][0]["type"] = "uc"
    with pytest.raises(ReplayError, match="needs config.uc"):
        parse_setup(setup)
    setup = with_qps(17, ipv6=False)
    setup["qps"][0]["peer"] = {"ipv6": "fd00::2"}
    with pytest.raises(ReplayError, match="needs config.ipv6"):
        parse_setup(setup)


def test_the_example_is_json():
    assert parse_setup(json.loads(json.dumps(EXAMPLE))) == parse_setup(EXAMPLE)
