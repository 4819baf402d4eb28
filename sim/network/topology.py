"""The usual shapes, with the impairments placed so that each frame meets them once on its way."""

from .core import Network

__all__ = ["back_to_back", "star"]


def back_to_back(*, seed=1, names=("port0", "port1"), **options):
    """Two ports and a link between them; `options`, as of Lane, for both directions."""
    net = Network(seed)
    net.link(net.port(names[0]), net.port(names[1]), **options)
    return net


def star(n, *, rate, delay_ns, queue_bytes=None, ecn=None, record=False, latency_ns=0, seed=1, names=None, jitter_ns=None,
         jitter_keeps_order=True, overhead_bytes=24, min_frame_bytes=60, **impair):
    """`n` ports around a switch. The switch has a queue of `queue_bytes` with `ecn` for each port; faults and jitter happen
    on the lanes from the switch. The switch is `net.switches[0]`, the queue to a port `port.into.queue`."""
    net = Network(seed)
    hub = net.switch("switch", latency_ns=latency_ns)
    for i in range(n):
        port = net.port(names[i] if names else None)
        framing = dict(overhead_bytes=overhead_bytes, min_frame_bytes=min_frame_bytes)
        net.link(port, hub, rate=rate, delay_ns=delay_ns, **framing,
                 back=dict(queue_bytes=queue_bytes, ecn=ecn, record=record, jitter_ns=jitter_ns,
                           jitter_keeps_order=jitter_keeps_order, **impair))
    return net
