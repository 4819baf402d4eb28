"""Header layouts: Ethernet, IPv4, IPv6, UDP, and the InfiniBand transport headers (IBTA volume 1; RoCEv2: annex A17).

Plain tables, no hardware library: the parser and the packet builder take their slices from them. All fields are in
network order: bit 0 is the most significant bit of a header's first byte.
"""

from dataclasses import dataclass

__all__ = ["HeaderField", "Header", "ETHERNET", "VLAN", "IPV4", "IPV6", "UDP", "BTH", "XPETH", "RETH", "IMMDT", "AETH",
           "IETH", "DETH", "ATOMIC_ETH", "ATOMIC_ACK_ETH", "FETH", "ICRC_BYTES", "ETHERTYPE_VLAN", "ETHERTYPE_IPV4",
           "ETHERTYPE_IPV6", "PROTOCOL_UDP", "ROCE_PORT"]

ETHERTYPE_VLAN, ETHERTYPE_IPV4, ETHERTYPE_IPV6 = 0x8100, 0x0800, 0x86DD
PROTOCOL_UDP = 17
ROCE_PORT = 4791
ICRC_BYTES = 4


@dataclass(frozen=True)
class HeaderField:
    name: str
    bit: int                #: position of the most significant bit
    width: int
    masked: bool = False    #: may change on the way: counts as ones in the ICRC


@dataclass(frozen=True)
class Header:
    name: str
    size: int               #: bytes
    fields: tuple

    def __post_init__(self):
        end = 0
        for f in self.fields:
            if f.bit != end:
                raise ValueError(f"{self.name}.{f.name} does not follow its neighbour")
            end += f.width
        if end != 8 * self.size:
            raise ValueError(f"{self.name} has {end} bits, not {self.size} bytes")

    def __getitem__(self, name):
        return next(f for f in self.fields if f.name == name)

    def pack(self, **values):
        word = 0
        for f in self.fields:
            value = values.pop(f.name, 0)
            if not 0 <= value < 1 << f.width:
                raise ValueError(f"{self.name}.{f.name}={value} does not fit {f.width} bits")
            word = word << f.width | value
        if values:
            raise ValueError(f"{self.name} has no field {', '.join(values)}")
        return word.to_bytes(self.size, "big")

    def unpack(self, data):
        word = int.from_bytes(data[:self.size], "big")
        return {f.name: word >> 8 * self.size - f.bit - f.width & (1 << f.width) - 1 for f in self.fields}

    def masked_bits(self):
        """Positions of the bits that the ICRC takes as ones."""
        return [f.bit + i for f in self.fields if f.masked for i in range(f.width)]


def _header(name, *fields):
    """Fields one after the other: (name, width) or (name, width, "masked")."""
    made, bit = [], 0
    for field, width, *masked in fields:
        made.append(HeaderField(field, bit, width, bool(masked)))
        bit += width
    return Header(name, bit // 8, tuple(made))


ETHERNET = _header("ethernet", ("dst", 48), ("src", 48), ("ethertype", 16))
VLAN = _header("vlan", ("pcp", 3), ("dei", 1), ("vid", 12), ("ethertype", 16))      # behind an EtherType of 0x8100
IPV4 = _header("ipv4", ("version", 4), ("ihl", 4), ("dscp", 6, "masked"), ("ecn", 2, "masked"), ("total_length", 16),
               ("identification", 16), ("flags", 3), ("fragment_offset", 13), ("ttl", 8, "masked"), ("protocol", 8),
               ("checksum", 16, "masked"), ("src", 32), ("dst", 32))
IPV6 = _header("ipv6", ("version", 4), ("dscp", 6, "masked"), ("ecn", 2, "masked"), ("flow_label", 20, "masked"),
               ("payload_length", 16), ("next_header", 8), ("hop_limit", 8, "masked"), ("src", 128), ("dst", 128))
UDP = _header("udp", ("src_port", 16), ("dst_port", 16), ("length", 16), ("checksum", 16, "masked"))
BTH = _header("bth", ("opcode", 8), ("solicited", 1), ("migreq", 1), ("pad_count", 2), ("version", 4), ("pkey", 16),
              ("fecn", 1, "masked"), ("becn", 1, "masked"), ("reserved6", 6, "masked"), ("dest_qp", 24),
              ("ack_req", 1), ("reserved7", 7), ("psn", 24))
XPETH = _header("xpeth", ("tracked", 1), ("echo", 1), ("reserved", 6), ("generation", 8), ("tag", 16), ("seq", 32),
                ("msg_len", 32), ("offset", 32))
RETH = _header("reth", ("va", 64), ("rkey", 32), ("length", 32))
IMMDT = _header("immdt", ("imm", 32))
AETH = _header("aeth", ("syndrome", 8), ("msn", 24))
IETH = _header("ieth", ("rkey", 32))
DETH = _header("deth", ("qkey", 32), ("reserved", 8), ("src_qp", 24))
ATOMIC_ETH = _header("atomic_eth", ("va", 64), ("rkey", 32), ("swap_add", 64), ("compare", 64))
ATOMIC_ACK_ETH = _header("atomic_ack_eth", ("original", 64))
FETH = _header("feth", ("flush", 32))
