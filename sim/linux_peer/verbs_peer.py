"""A queue pair of the guest's Soft-RoCE device, driven from here: the other end of guest/verbs_peer.c.

    with VerbsPeer(lab.guest, mtu=1024) as peer:
        peer.connect(qp, mr)                            # a queue pair of a simulated card, a memory region that the peer may use
        peer.load(0, data)
        assert peer.run([Op("write", 1000, 0, mr.addr)], depth=4)[0].ok
"""

from dataclasses import dataclass
import itertools

from host_driver.verbs import GID, MTU, AHAttr, GlobalRoute, QPAttr, QPType

from .errors import PeerError
from .exchange import End, exchange
from .jobs import GuestListener, GuestSocket

__all__ = ["VerbsPeer", "Op", "Completion"]

PORTS = itertools.count(20000)      # in the guest; a new one for each, so that none is still in use
WITH_IMM = 2                        # of enum ibv_wc_flags
#: of a card's queue pair: an ACK timeout of 17 ms, 1.7 s of the guest
RELIABLE = {"timeout": 12, "retry_cnt": 7, "rnr_retry": 7, "min_rnr_timer": 12}


@dataclass(frozen=True)
class Op:
    """`name`: write, write_imm, send, send_imm, read, cas, fadd. `local`: offset in the peer's memory; `remote`: address in the
    other end's. `rkey`: None for the one that was exchanged. `compare`, `swap` of cas, `add` of fadd."""
    name: str
    length: int
    local: int = 0
    remote: int = 0
    imm: int = 0
    rkey: int = None
    compare: int = 0
    swap: int = 0
    add: int = 0
    solicited: bool = False
    inline: bool = False

    def line(self):
        more = {"imm": self.imm, "rkey": self.rkey, "compare": self.compare, "swap": self.swap, "add": self.add,
                "solicited": int(self.solicited), "inline": int(self.inline)}
        words = [f"{key}={value}" for key, value in more.items() if value]
        return " ".join([f"op {self.name} {self.length} {self.local} {self.remote:#x}", *words])


@dataclass(frozen=True)
class Completion:
    """Of the peer. `status` is the number of enum ibv_wc_status, `text` what libibverbs calls it; `imm` None without one."""
    wr_id: int
    status: int
    vendor_err: int
    opcode: int
    byte_len: int
    imm: int
    text: str

    @property
    def ok(self):
        return self.status == 0


class VerbsPeer:
    """Starts the program in `guest` and keeps it until `close`. `settings`, as numbers: uc, mtu, psn, timeout, retry, rnr_retry,
    rnr_timer, rd_atomic, dest_rd_atomic, tos, ttl, memory (bytes), access and qp_access (of its region and its queue pair, as in verbs), queue
    (depth), gid (index; or `ip6`, true or false, finds it). With `active` it is the guest that connects to a port of this machine.
    """

    def __init__(self, guest, *, ip6=False, active=False, port=None, **settings):
        self.guest, self.uc, self.mtu, self.ip6 = guest, bool(settings.get("uc")), settings.get("mtu", 1024), ip6
        if "gid" not in settings:
            settings["gid"] = guest.gid_index(guest.address.ip6 if ip6 else guest.address.ip)
        self._socket = self._listener = None
        if active:
            self._listener = GuestListener(guest, port or 0)
            settings |= {"host": GuestListener.HOST, "port": self._listener.port}
        else:
            settings["port"] = port or next(PORTS)
        self._active, self._port = active, settings["port"]
        self.job = guest.start("exec verbs_peer " + " ".join(f"{key}={value}" for key, value in settings.items()))
        self.there = None               #: its End, once connected
        self._ops = 0

    # -- connecting -----------------------------------------------------------------------------------------

    def exchange(self, mine):
        """Tell it `mine`, an End, and learn its own, which is returned and is `there`."""
        if self._active:
            self._socket = self._listener.accept()
        else:
            self.job.wait_for("listening")
            self._socket = GuestSocket.connect(self.guest, self._port)
        try:
            self.there = exchange(self._socket, mine, client=not self._active)
        except PeerError as error:
            raise PeerError(f"{error}; verbs_peer said: {self.job.output.strip()!r}") from None
        return self.there

    def connect(self, qp, mr=None, *, psn=None, traffic_class=0, **attributes):
        """Exchange with `qp`, a QP of host_driver.verbs, and take that to RTS; `mr`: memory the peer may use by its key. `psn`: of
        the card's first packet, by default what it chooses. `attributes` of QPAttr: timeout, retry_cnt, rnr_retry,
        min_rnr_timer, max_rd_atomic; by default those of RELIABLE, which suit a peer in lock step."""
        context, address = qp.context, self.guest.address
        psn = qp.info().get("psn", 0) if psn is None else psn
        memory = (mr.rkey, mr.addr, mr.length) if mr else ()
        there = self.exchange(End(qp.qp_num, psn, context.query_gid(index=int(self.ip6)), *memory))
        if qp.qp_type == QPType.IBV_QPT_RC:
            attributes = RELIABLE | {"max_rd_atomic": context.max_rd_atomic} | attributes
        route = GlobalRoute(GID(address.ip6 if self.ip6 else address.ip), traffic_class=traffic_class)
        qp.to_rts(QPAttr(path_mtu=MTU[f"IBV_MTU_{self.mtu}"], dest_qp_num=there.qpn, sq_psn=psn, rq_psn=there.psn,
                         ah_attr=AHAttr(route, mac=address.mac), **attributes))
        return self

    # -- commands -------------------------------------------------------------------------------------------

    def _ask(self, line, data=b""):
        self._socket.sendall(line.encode() + b"\n" + data)

    def _answer(self):
        """(words behind "ok", completions before it)."""
        found = []
        while True:
            words = self._socket.readline().split(" ")
            if words[0] == "wc":
                wr_id, status, vendor, opcode, length, imm, flags = (int(word) for word in words[1:8])
                imm = imm if flags & WITH_IMM else None
                found.append(Completion(wr_id, status, vendor, opcode, length, imm, " ".join(words[8:])))
            elif words[0] == "ok":
                return words[1:], found
            else:
                raise PeerError(f"verbs_peer: {' '.join(words)}")

    def load(self, offset, data):
        """Put bytes into its memory."""
        self._ask(f"load {offset} {len(data)}", bytes(data))
        self._answer()

    def fill(self, offset, length, byte=0):
        self._ask(f"fill {offset} {length} {byte}")
        self._answer()

    def dump(self, offset, length):
        """Bytes of its memory."""
        self._ask(f"dump {offset} {length}")
        self._answer()
        return self._socket.recv_exactly(length)

    def crc(self, offset, length):
        """Their CRC-32, as zlib.crc32."""
        self._ask(f"crc {offset} {length}")
        return int(self._answer()[0][0])

    def receive(self, wr_id, offset, length):
        """Post a receive."""
        self._ask(f"receive {wr_id} {offset} {length}")
        self._answer()

    def receives(self, count, ms=10_000):
        """The completions of receives, `count` or those of so many ms of the guest's clock."""
        self._ask(f"receives {count} {ms}")
        return self._answer()[1]

    def begin(self, ops, depth=1, ms=10_000):
        """Start a list of Ops, `depth` under way at most, each with a completion; :meth:`end` waits for them."""
        ops = list(ops)
        for op in ops:
            self._ask(op.line())
        for _ in ops:
            self._answer()
        self._ask(f"run {depth} {ms}")

    def ended(self):
        """Whether :meth:`end` would find something to read at once. Never waits."""
        return self._socket.has_line()

    def end(self):
        """The Completions of the ops begun: all, or those that came in their time."""
        return self._answer()[1]

    def run(self, ops, depth=1, ms=10_000):
        self.begin(ops, depth, ms)
        return self.end()

    def state(self):
        """(state as of QPState, PSN of the send queue, PSN of the receive queue)."""
        self._ask("state")
        return tuple(int(word) for word in self._answer()[0])

    def flush(self):
        """Take its queue pair to ERR."""
        self._ask("flush")
        self._answer()

    def close(self):
        if self._listener:
            self._listener.close()
        if self._socket:
            self._socket.close()
        self.job.kill()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
