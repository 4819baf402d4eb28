"""The card opened: Context, what it says of itself, and how time passes."""

from dataclasses import dataclass

from ..card import Card
from ..errors import UsageError
from ..neighbours import Neighbours
from ..queue_pairs import mac_text
from .addr import GID
from .enums import MTU, PortState, mtu_bytes
from .numbers import Numbers, Peers
from .resource import Resource

__all__ = ["Context", "DeviceAttr", "PortAttr"]

SERVE_NS = 2_000            # in simulation frames for the host are looked at so often while a program sleeps,
BOARD_SERVE_NS = 1_000_000  # on a board, where that is real time, so often


@dataclass(frozen=True)
class DeviceAttr:
    """As far as the card has them, the names of ibv_device_attr; behind them what OptiNIC adds."""
    max_qp: int
    max_qp_wr: int
    max_sge: int
    max_cq: int
    max_cqe: int
    max_mr: int
    max_mr_size: int
    max_pd: int
    max_qp_rd_atom: int         # of peers, on a queue pair
    max_qp_init_rd_atom: int
    max_inline_data: int
    phys_port_cnt: int
    hw_ver: str                 # of the host interface
    transport: str
    congestion: str
    features: frozenset
    num_comp_vectors: int
    data_width: int
    clock_hz: int
    config_hash: int


@dataclass(frozen=True)
class PortAttr:
    state: PortState            # active: frames are accepted and sent; the card doesn't know of the cable
    max_mtu: MTU
    active_mtu: MTU
    gid_tbl_len: int
    link_layer: str
    mac: str
    ip: str
    ip6: str


class Context(Resource):
    """A card, opened. `device` is what `open_device` makes, or anything with the methods that `host_driver.card` names.

    `mac`, `ip` and `ip6` are the port's own addresses. `cfg`, if given, is the NicConfig that the card must have. With `hold` a
    full packet buffer holds the sender (PFC), without, it drops. `log_entries`: how many refusals the card can report between two
    looks at :meth:`status`. `seed` makes the numbers that are chosen at random the same in every run. `owns`: closed with it.

    A card that another driver left as it was, is cleared first: whatever it was doing ends. One thread only; every
    call does its work before it returns.
    """

    def __init__(self, device, *, cfg=None, mac="02:00:00:00:00:01", ip="10.0.0.1", ip6=None, hold=False, log_entries=1024,
                 seed=None, name="optinic0", owns=None):
        super().__init__()
        self.name, self._owns = name, owns
        self.device, self._cfg = device, cfg
        self.card = Card(device, cfg)
        if self.card.found_running:
            self.card.tear_down()
        self.mac, self.ip, self.ip6 = mac_text(mac), None if ip is None else str(ip), None if ip6 is None else str(ip6)
        self.card.set_local(mac, ip, ip6)
        self.numbers, self.peers = Numbers(self.card, seed), Peers(self.card)
        self.neighbours = Neighbours(self)
        self.serves = [self.neighbours]     # whose frames are looked at while this context waits: see open_cards
        self._hold, self._log = hold, self.numbers.cq()
        self.card.log_refusals(self._log, log_entries)
        self._channels = []             # of CompChannel
        self._last_status = None
        self.enable()

    def __repr__(self):
        return f"Context({self.name!r})"

    # -- what it is -------------------------------------------------------------------------------------

    def query_device(self):
        card = self.card
        return DeviceAttr(
            max_qp=card.num_qps, max_qp_wr=min(card.rq_entries, card.sq_entries), max_sge=1, max_cq=card.num_cqs - 1, max_cqe=32768,
            max_mr=card.num_regions, max_mr_size=1 << 64, max_pd=65535, max_qp_rd_atom=self.max_dest_rd_atomic,
            max_qp_init_rd_atom=self.max_rd_atomic, max_inline_data=32,
            phys_port_cnt=1, hw_ver=f"{card.version >> 16}.{card.version & 0xFFFF}", transport=card.transport,
            congestion=card.congestion, features=card.features, num_comp_vectors=card.num_vectors, data_width=card.data_width,
            clock_hz=card.clock_hz, config_hash=card.config_hash)

    def query_port(self, port_num=1):
        self._check_port(port_num)
        largest = max(code for code in MTU if mtu_bytes(code) <= self.card.mtu_max)
        both_ways = self.card.reg_read("CTRL") & 5 == 5
        state = PortState.IBV_PORT_ACTIVE if both_ways else PortState.IBV_PORT_DOWN
        return PortAttr(state, largest, largest, 1 + (self.ip6 is not None), "Ethernet", self.mac, self.ip, self.ip6)

    def query_gid(self, port_num=1, index=0):
        """GID 0 is the IPv4 address, 1 the IPv6 address if there is one."""
        self._check_port(port_num)
        gids = [GID(ip) for ip in (self.ip, self.ip6) if ip is not None]
        if not 0 <= index < len(gids):
            raise UsageError(f"there is no GID {index}: the port has {len(gids)}")
        return gids[index]

    @staticmethod
    def _check_port(port_num):
        if port_num != 1:
            raise UsageError(f"there is no port {port_num}: a card has port 1")

    @property
    def max_rd_atomic(self):
        """READs of a queue pair (with transport rc: READs and atomics) that can be under way at once."""
        if not self.card.rc:
            return min(self.card.rq_entries, self.card.sq_entries // 2)
        return min(self.card.rc_outstanding, self.card.rq_entries)

    @property
    def max_dest_rd_atomic(self):
        """Those of a peer that a queue pair can take at once."""
        if not self.card.rc:
            return self.max_rd_atomic
        return self.card.rc_resources

    @property
    def has_atomics(self):
        return "rc_atomics" in self.card.features

    # -- on, off, and time ------------------------------------------------------------------------------

    def enable(self, *, rx=True, tx=True):
        """Accept frames, and send them. A context is opened with both."""
        if not rx:
            raise UsageError("a card that doesn't receive can't be told to send; use disable()")
        self.card.enable(hold=self._hold, tx=tx)

    def disable(self):
        """Discard every frame that comes and begin none; queue pairs stay as they are."""
        self.card.disable()

    def time_ns(self):
        """The NIC's time, of which deadline_ns and WC.timestamp are."""
        return self.card.time_ns()

    def sleep_ns(self, ns):
        """Let so much time pass on the card: in simulation, that is what makes time pass."""
        hz = self.card.clock_hz
        left = max(1, -(-ns * hz // 1_000_000_000))
        piece = max(1, (BOARD_SERVE_NS if getattr(self.device, "live_memory", False) else SERVE_NS) * hz // 1_000_000_000)
        while left > 0:
            self.card.run(min(left, piece))
            left -= piece
            self.poll()

    def poll(self):
        """Look at the frames that cards have passed to their hosts, this one's and those of the cards in the same simulation: see
        :class:`~host_driver.neighbours.Neighbours`. Every wait and sleep does so."""
        for neighbours in self.serves:
            neighbours.poll()

    def wait_until(self, condition, timeout_ns, step_ns=250):
        """Let time pass until `condition()` is true; what it said last, false if `timeout_ns` were over first."""
        end = None
        self.poll()
        while not (said := condition()):
            now = self.time_ns()
            end = now + timeout_ns if end is None else end
            if now >= end:
                break
            self.sleep_ns(min(step_ns, end - now))
        return said

    # -- why nothing moves ------------------------------------------------------------------------------

    def counters(self):
        """The card's counters by name."""
        return self.card.counters()

    def status(self):
        """See :mod:`host_driver.verbs.status`; `print(ctx.status())` says why nothing moves."""
        from .status import context_status
        self.check_open()
        return context_status(self)

    def _close(self):
        self.serves.remove(self.neighbours)
        self.card.disable()
        self.card.command("fence")
        self.card.reg_write("REFUSAL_LOG", 0)
        self.card.remove_cq(self._log)
        self.card.give_back_rings()
        if self._owns is not None:
            self._owns.close()
