"""What others publish about their designs. Their figures, not ours: other devices, widths, features and tools.

`bytes_per_qp` is state on the chip for one queue pair; `how` says whether the authors state it or whether it was added up from
their public source code by us.
"""

__all__ = ["PEERS"]

#: name, bytes_per_qp, what is in it, how, source
PEERS = [
    {"name": "OptiNIC (paper)", "bytes_per_qp": 52, "what": "best effort: QP context 20 bytes, DCQCN 32 bytes",
     "how": "stated by the authors, here after readers' notes", "source": "arXiv 2512.22743; Celeris, arXiv 2510.16606"},
    {"name": "RoCE baseline of the OptiNIC paper", "bytes_per_qp": 407, "what": "reliable, go-back-N",
     "how": "stated by the authors, here after readers' notes", "source": "arXiv 2512.22743; Celeris, arXiv 2510.16606"},
    {"name": "ETH fpga-network-stack RoCE", "bytes_per_qp": 224, "what": "reliable, 500 QPs: 74 in tables, 150 in shared pools for "
     "retransmission and READ; copies of payload are outside the chip",
     "how": "added up from the source", "source": "github.com/fpgasystems/fpga-network-stack, hls/ib_transport_protocol"},
    {"name": "open-rdma-rtl", "bytes_per_qp": 78, "what": "context 149 bits and window bitmap 161 bits, two copies of each; "
     "retransmission and congestion control are in its driver",
     "how": "added up from the source", "source": "github.com/open-rdma/open-rdma-rtl, src/PsnContinousChecker.bsv"},
    {"name": "JingZhao", "bytes_per_qp": 68, "what": "one cached QP context of 416 bits and one CQ context of 128 bits; the rest is in "
     "host memory, 256 bytes for each QP", "how": "added up from the source", "source": "github.com/ETH-PLUS/Jingzhao"},
    {"name": "Corundum", "bytes_per_qp": 48, "what": "a plain Ethernet NIC for scale: three queues of 128 bits, no transport",
     "how": "stated in its documentation, by queue", "source": "docs.corundum.io, queue_manager"},
]
