"""Simulated cards and Linux guests on one network.

    with Guest(build_image()) as guest, Lab("rtl", [guest], cfg="tiny", loss=0.01) as lab:
        card = lab.cards[0]                 # a Context of host_driver.verbs
        guest.run("ip neigh")               # the cards keep step
        card.sleep_ns(10_000)               # and the guest does
"""

import ipaddress
import shlex

from host_driver.verbs import open_cards
from sim.network import GBIT, back_to_back, star

from .lockstep import Lockstep

__all__ = ["Lab", "CARD_MAC", "CARD_IP", "CARD_IP6"]

#: of card 0; those of others count up
CARD_MAC, CARD_IP, CARD_IP6 = "02:00:0a:4d:00:01", "10.77.0.1", "fd77::1"


class Lab:
    """`count` cards of `backend` ("rtl" or "model") at the first ports of the network, the `guests` behind them; one of each is a
    cable, more a switch. The guests stay booted when it is closed, so that one boot serves many labs.

    `cards` are Contexts, `network` and `world` the simulation's, `lockstep` keeps the guests in step. `ratio`, `turn_ns`: as of
    Lockstep. `capture`: a pcap file of all that the first guest sends and gets. `cfg`, `transport`, `seed`, `changes`, `knobs`: of
    open_cards. `neighbours`: enter cards and guests into the guests' neighbour tables, as nobody answers for a card unless
    a program does. All other options: of the links (rate, delay_ns, loss, ...).
    """

    def __init__(self, backend, guests, *, count=1, cfg="tiny", transport="rc", seed=1, ratio=100, turn_ns=1_000_000, capture=None,
                 changes=None, knobs=None, neighbours=True, **link):
        names = [f"card{i}" for i in range(count)] + [f"guest{i}" for i in range(len(guests))]
        link = {"rate": 10 * GBIT, "delay_ns": 1000, **link}
        make = back_to_back(names=names, seed=seed, **link) if len(names) == 2 else star(len(names), names=names, seed=seed, **link)
        self.guests, self.network, self.lockstep = list(guests), make, None
        self.cards = open_cards(backend, count, cfg=cfg, transport=transport, seed=seed, mac=CARD_MAC, ip=CARD_IP, ip6=CARD_IP6,
                                network=make, changes=changes, knobs=knobs)
        try:
            self.world = self.cards.world
            if capture is not None:
                make.capture(capture, count)
            self.lockstep = Lockstep(self.world, {count + i: guest for i, guest in enumerate(self.guests)}, ratio=ratio,
                                     turn_ns=turn_ns, busy=self._busy)
            if neighbours:
                for guest in self.guests:
                    self._enter_neighbours(guest)
        except BaseException:
            self.close()
            raise

    def _busy(self):
        """Whether a card has to act when some time is over, although nothing comes: with transport rc that is a request without
        its acknowledgement, with xp every work request may have its deadline."""
        return any(qp.queue(queue).outstanding for context in self.cards for qp in context.card._qps.values()
                   for queue in (("send",) if context.card.rc else ("send", "receive")))

    def _enter_neighbours(self, guest):
        others = [(c.mac, (c.ip, c.ip6)) for c in self.cards]
        others += [(g.address.mac, (g.address.ip, g.address.ip6)) for g in self.guests if g is not guest]
        guest.run("\n".join(f"ip neigh replace {shlex.quote(str(ipaddress.ip_address(ip)))} lladdr {mac} dev link0 nud permanent"
                            for mac, ips in others for ip in ips))

    def wait(self, condition, timeout_s=30, what="a condition"):
        """Let time pass for cards and guests until `condition()`; PeerTimeout after so many seconds of the guests' clock."""
        self.lockstep.patience(condition, timeout_s, what)

    def close(self):
        if self.lockstep is not None:
            self.lockstep.close()
        self.cards.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
