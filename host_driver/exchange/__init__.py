"""Out-of-band exchange over TCP, in the formats of the stock tools: `ibv_rc_pingpong` and `ibv_uc_pingpong` of rdma-core,
`ib_write_bw` and `ib_send_bw` of perftest. Either side may be client or server; the other one is the tool itself on a Linux
machine, or this.

    with Listener(18515, patience=letting_time_pass(ctx)) as listener, listener.accept() as line:
        result = pingpong(ctx, line, client=False, size=1024, iterations=10)

docs/driver.md, "Stock tools at the other end".
"""

from ..errors import ExchangeError
from .address import Address, own_address, peer_attr
from .line import Line, Listener, connect, letting_time_pass
from .perftest import Perftest
from .programs import ProgramError, bandwidth, contents, pingpong
from .rdma_core import as_client, as_server

__all__ = ["Address", "ExchangeError", "Line", "Listener", "Perftest", "ProgramError", "as_client", "as_server", "bandwidth",
           "connect", "contents", "letting_time_pass", "own_address", "peer_attr", "pingpong"]
