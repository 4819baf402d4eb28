"""What a queue pair is, who its peer is, and its states; posting to it is in `qp`."""

from dataclasses import replace

from ..errors import OptinicError, StateError, UsageError
from ..queue_pairs import TYPES, ArrivalMap
from .addr import AHAttr, GID, GlobalRoute
from .endpoint import Endpoint
from .enums import QPAttrMask, QPState, QPType, mtu_bytes, mtu_code
from .qp_attr import QPAttr, QPCap, QPInitAttr
from .resource import Resource

__all__ = ["Connection"]

RESET, INIT, RTR, RTS, SQD, ERR = QPState        # in this order
CARD_TYPE = {QPType.OPT_QPT_XP: "xp", QPType.IBV_QPT_RC: "rc", QPType.IBV_QPT_UC: "uc"}
SENDING = ("sq_psn", "timeout", "retry_cnt", "rnr_retry", "max_rd_atomic")      # attributes that verbs sets at RTS
#: what connect() takes for type RC, where the peer is microseconds away: an ACK timeout of 1 ms, an RNR wait of 40 us
USUAL = dict(timeout=8, retry_cnt=7, rnr_retry=7, min_rnr_timer=4)


def power_of_two(n):
    return 1 << max(0, n - 1).bit_length()


class Connection(Resource):
    """One end of it. `since` has, for "receive", "send" and "read", the NIC time since which the oldest one waits."""

    def __init__(self, pd, init_attr, qp_attr=None):
        super().__init__(pd)
        card = pd.context.card
        types = [t for name in TYPES[card.transport] for t in CARD_TYPE if CARD_TYPE[t] == name]
        qp_type = types[0] if init_attr.qp_type is None else init_attr.qp_type
        if qp_type not in types:
            raise UsageError(f"qp_type={qp_type!r} is not one of {', '.join(t.name for t in types)}: this card is of transport "
                             f"{card.transport}")
        if init_attr.scq is None or init_attr.rcq is None:
            raise UsageError("a queue pair needs a CQ for its sends and one for its receives (scq, rcq); they can be the same")
        self.pd, self.context, self.init_attr = pd, pd.context, init_attr
        self.scq, self.rcq, self.qp_type = init_attr.scq, init_attr.rcq, QPType(qp_type)
        self.cap = self._capabilities(init_attr.cap)
        if card.rc and (init_attr.recv_timeout_ns, init_attr.send_timeout_ns, init_attr.arrival_bytes) != (None, None, 0):
            raise UsageError("recv_timeout_ns, send_timeout_ns and arrival_bytes are of transport xp; this card is of transport "
                             "rc, whose messages arrive whole, without a time limit")
        if init_attr.arrival_bytes and "arrival_map" not in card.features:
            raise UsageError("arrival_bytes asks for a map of what arrived, and this card has none; generate it with "
                             "arrival_map=on")
        for cq in (self.scq, self.rcq):
            cq.check_open()
        kind = CARD_TYPE[self.qp_type]
        self._main = Endpoint(self.context, kind, pd, self.rcq, self.scq)
        self._reads = None
        if self.cap.max_rd_atomic and not card.rc:
            try:
                self._reads = Endpoint(self.context, kind, pd, self.scq, self.scq)
            except OptinicError:
                self._main.release()
                raise
        self._state, self.attr = RESET, QPAttr()
        self._peer = self._map = None
        self._early = []                # receives posted before there is a peer, as arguments of Card.post_receive
        self.since = dict.fromkeys(("receive", "send", "read"))
        self._use(*{self.scq, self.rcq})
        self._born()
        if qp_attr is not None:
            self.to_rts(qp_attr)

    def __repr__(self):
        return f"QP({self.qp_num:#x}, {self.qp_state.name})"

    def _capabilities(self, wanted):
        card = self.context.card
        there = QPCap(card.sq_entries, card.rq_entries, 1, 1, 32, wanted.max_rd_atomic)
        if self.init_attr.arrival_bytes:
            there.max_recv_wr = min(power_of_two(wanted.max_recv_wr), card.rq_entries)
        limits = {**vars(there), "max_rd_atomic": self.context.max_rd_atomic}
        for name, value in vars(wanted).items():
            if not 0 <= value <= limits[name]:
                raise UsageError(f"{name}={value}, and the card has at most {limits[name]}; see Context.query_device")
        if wanted.max_rd_atomic and self.qp_type == QPType.IBV_QPT_UC:
            raise UsageError("IBV_QPT_UC has no READ: max_rd_atomic must be 0")
        return there

    @property
    def qp_state(self):
        """As the program has set it. Of type RC also ERR, once a completion has told that the card has given up: see
        :meth:`failure`."""
        if self._state in (RTR, RTS, SQD) and self._main.failure:
            self._state = ERR
        return self._state

    @property
    def failure(self):
        """Why the card has given up (retry, rnr_retry, remote_access, ...: as WC.cause), else None; as far as somebody has
        polled."""
        return self._main.failure and self._main.failure.cause

    # -- who it is, and who the peer is -------------------------------------------------------------------

    @property
    def qp_num(self):
        return self._main.qpn

    def info(self):
        """What the peer's :meth:`connect` wants: numbers and text, fit for JSON. It holds until this queue pair's next RESET."""
        context = self.context
        found = {"type": self._main.type, "qp_num": self.qp_num, "mtu": context.card.mtu_max, "mac": context.mac, "ip": context.ip,
                 "ip6": context.ip6}
        if context.card.rc:
            return found | {"psn": self._main.psn, "max_dest_rd_atomic": context.max_dest_rd_atomic}
        found["generation"] = self._main.generation
        if self._reads:
            found |= {"read_qp_num": self._reads.qpn, "read_generation": self._reads.generation}
        return found

    def connect(self, info, *, mtu=None, ip6=False, traffic_class=0, paths=1, vlan=None, **reliable):
        """Take it from RESET or INIT to RTS with the peer whose :meth:`info` this is. `mtu`: bytes, by default the largest that
        both have. With `ip6` over IPv6. Without a "mac" in `info` it is asked for.
        `reliable`, of type RC: timeout, retry_cnt, rnr_retry, min_rnr_timer (else as in USUAL) and
        max_rd_atomic (else as many READs as both ends have room for) of QPAttr."""
        if info["type"] != self._main.type:
            raise UsageError(f"the peer is of type {info['type']}, this queue pair of type {self._main.type}")
        if self._reads and "read_qp_num" not in info:
            raise UsageError("this queue pair is to READ, and the peer has no companion for that; give its QPCap max_rd_atomic too")
        reliable = self._reliable(info, reliable)
        address = info.get("ip6" if ip6 else "ip")
        if address is None:
            raise UsageError(f"the peer has no {'IPv6 address; open its Context with ip6=' if ip6 else 'IPv4 address'}")
        self.to_rts(QPAttr(
            path_mtu=mtu_code(min(self.context.card.mtu_max, info["mtu"]) if mtu is None else mtu), dest_qp_num=info["qp_num"],
            dest_generation=info.get("generation"), dest_read_qp_num=info.get("read_qp_num"),
            dest_read_generation=info.get("read_generation"), paths=paths, **reliable,
            ah_attr=AHAttr(GlobalRoute(GID(address), traffic_class=traffic_class), mac=info.get("mac"), vlan=vlan)))
        return self

    def _reliable(self, info, given):
        """What goes into QPAttr for a card of transport rc."""
        known = {*USUAL, "max_rd_atomic"} if self.qp_type == QPType.IBV_QPT_RC else set()
        if given.keys() - known:
            raise UsageError(f"{', '.join(sorted(given.keys() - known))}: a queue pair of type {self._main.type} has no such "
                             f"attribute")
        if not self.context.card.rc:
            return {}
        found = dict(sq_psn=self._main.psn, rq_psn=info.get("psn", 0))
        if self.qp_type == QPType.IBV_QPT_RC:
            most = min(self.context.max_rd_atomic, info.get("max_dest_rd_atomic", 1))
            found |= USUAL | {"max_rd_atomic": min(self.cap.max_rd_atomic or most, most)} | given
        return found

    # -- states -------------------------------------------------------------------------------------------

    def _need_state(self, what, *states):
        self.check_open()
        if self.qp_state not in states:
            raise StateError(f"{self!r}: {what} needs state {' or '.join(s.name for s in states)}")

    def to_init(self, qp_attr=None):
        """RESET to INIT: receives can be posted; the card tells senders by the reason `state` that it is not ready."""
        self._need_state("to_init", RESET)
        for endpoint in self._endpoints():
            endpoint.set("init", mtu=self.context.card.mtu_max)
        self._state = INIT

    def to_rtr(self, qp_attr):
        """To RTR, by way of INIT: it receives from its peer. What was posted in INIT is posted now, and its clocks begin."""
        self._need_state("to_rtr", RESET, INIT)
        attr, ah = qp_attr, qp_attr.ah_attr
        if ah is None:
            raise UsageError("RTR needs ah_attr with the peer's GID; QP.connect fills it in")
        if attr.dest_generation is None and self.qp_type == QPType.OPT_QPT_XP:
            raise UsageError("RTR needs dest_generation, from the peer's info()")
        self._check_rd_atomic(attr)
        if self._reads and None in (attr.dest_read_qp_num, attr.dest_read_generation):
            raise UsageError("RTR with READs needs dest_read_qp_num and dest_read_generation, from the peer's info()")
        size = mtu_bytes(attr.path_mtu)
        if size > self.context.card.mtu_max:
            raise UsageError(f"path_mtu is {size}, and the card's is {self.context.card.mtu_max} at most")
        if ah.gr.dgid.ip.version == 6 and self.context.ip6 is None:
            raise UsageError("the peer's address is IPv6, and this port has none; open the Context with ip6=")
        if ah.mac is None:
            ah = replace(ah, mac=self.context.neighbours.resolve(ah.gr.dgid.ip, vlan=ah.vlan))
            attr = replace(attr, ah_attr=ah)
        if self.qp_state == RESET:
            self.to_init(attr)
        self._peer = self.context.peers.take(str(ah.gr.dgid.ip), ah.mac, ah.vlan)
        self._map = self._make_map(size)
        common = dict(mtu=size, peer=self._peer, traffic_class=ah.gr.traffic_class, paths=attr.paths)
        self._main.set("ready", peer_qpn=attr.dest_qp_num, peer_generation=attr.dest_generation or 0, arrival_map=self._map,
                       **common, **self._of_card(attr))
        if self._reads:
            self._reads.set("ready", peer_qpn=attr.dest_read_qp_num, peer_generation=attr.dest_read_generation, **common)
        self.attr, self._state = attr, RTR
        self._post_early()

    def to_rts(self, qp_attr):
        """To RTS, by way of the states before it: it sends. From SQD: it sends again."""
        self._need_state("to_rts", RESET, INIT, RTR, SQD)
        if self.qp_state in (RESET, INIT):
            self.to_rtr(qp_attr)
        elif self.qp_type == QPType.IBV_QPT_RC:
            for name in SENDING:
                if getattr(qp_attr, name) not in (getattr(QPAttr, name), getattr(self.attr, name)):
                    raise UsageError(f"{name}={getattr(qp_attr, name)}, and {getattr(self.attr, name)} when it went to RTR: the "
                                     f"card takes the attributes of sending then, so give them there too")
        self._state = RTS

    def to_sqd(self):
        """RTS to SQD, of type RC: no send can be posted any more; those that are posted go on to their end (:attr:`sq_drained`)."""
        self._need_state("to_sqd", RTS)
        if self.qp_type != QPType.IBV_QPT_RC:
            raise UsageError(f"SQD is for IBV_QPT_RC: of {self.qp_type.name} unsignaled sends don't say when they have ended")
        self._state = SQD

    @property
    def sq_drained(self):
        """In SQD, whether every send that was posted has completed (to be polled, or polled)."""
        if self.qp_state != SQD:
            return False
        self.context.card.collect(self.scq.index)
        return not self._main.work("send").outstanding

    def to_err(self):
        """Everything posted completes as flushed, and nothing is received or sent any more."""
        self._need_state("to_err", INIT, RTR, RTS, SQD, ERR)
        self._post_early()
        for endpoint in self._endpoints():
            endpoint.flush()
        self._state = ERR

    def to_reset(self):
        """What is posted is forgotten, without completions; the life is over."""
        self.check_open()
        self._leave(Endpoint.end_life)
        self._state, self.attr = RESET, QPAttr()

    def modify(self, qp_attr, mask):
        """Change the state, as in pyverbs; the attributes that a state needs are taken from `qp_attr`."""
        if not mask & QPAttrMask.IBV_QP_STATE:
            raise UsageError("the card sets attributes of a queue pair with its state: the mask needs IBV_QP_STATE")
        target = QPState(qp_attr.qp_state)
        if target == RESET:
            self.to_reset()
        elif target == ERR:
            self.to_err()
        elif target == SQD:
            self.to_sqd()
        else:
            before = {INIT: [RESET], RTR: [INIT], RTS: [RTR, SQD]}[target]
            self._need_state(f"modify to {target.name}", *before)
            {INIT: self.to_init, RTR: self.to_rtr, RTS: self.to_rts}[target](qp_attr)

    def query(self, attr_mask=0):
        """(QPAttr, QPInitAttr) as they are."""
        self.check_open()
        attr = QPAttr(**vars(self.attr))
        attr.qp_state = attr.cur_qp_state = self.qp_state
        return attr, QPInitAttr(**{**vars(self.init_attr), "cap": self.cap, "qp_type": self.qp_type})

    def _endpoints(self):
        return [e for e in (self._main, self._reads) if e]

    def _check_rd_atomic(self, attr):
        if not self.context.card.rc:
            return
        for name in ("max_rd_atomic", "max_dest_rd_atomic"):
            most = getattr(self.context, name)
            if not 0 <= getattr(attr, name) <= most:
                raise UsageError(f"{name}={getattr(attr, name)}, and the card has at most {most}; see Context.query_device")

    def _of_card(self, attr):
        """The attributes that a queue pair of a card of transport rc has on the card."""
        if not self.context.card.rc:
            return {}
        found = dict(sq_psn=attr.sq_psn, rq_psn=attr.rq_psn)
        if self.qp_type == QPType.IBV_QPT_RC:
            # The card bounds requests of every kind; what it was built for is the bound without a smaller one.
            reads = attr.max_rd_atomic
            found |= dict(timeout=attr.timeout, retry_cnt=attr.retry_cnt, rnr_retry=attr.rnr_retry,
                          min_rnr_timer=attr.min_rnr_timer,
                          window=reads if reads < self.context.max_rd_atomic or self.context._cfg is None else 0)
        return found

    def _leave(self, how):
        for endpoint in self._endpoints():
            how(endpoint)
        self._early.clear()
        self.since = dict.fromkeys(self.since)
        if self._peer is not None:
            self.context.peers.give_back(self._peer)
        if self._map:
            self.context.card.free(self._map.addr)
        self._peer = self._map = None

    def _close(self):
        self._leave(Endpoint.release)
        self._unuse(*{self.scq, self.rcq})

    def _make_map(self, mtu):
        if not self.init_attr.arrival_bytes:
            return None
        pieces, rows = power_of_two(-(-self.init_attr.arrival_bytes // mtu)), self.cap.max_recv_wr
        return ArrivalMap(self.context.device.alloc(pieces * rows, 4096), pieces, rows)
