-- Wireshark dissector of OptiNIC's transport XP: RoCEv2 packets with BTH opcodes from 0xE0 on. See docs/wire-format.md.
--
--   tshark -X lua_script:docs/wireshark/optinic_xp.lua -r FILE.pcap
--   tshark -X lua_script:docs/wireshark/optinic_xp.lua -r FILE.pcap -Y optinic_xp -T fields -e optinic_xp.seq -e optinic_xp.offset
--
-- For Wireshark, put it into the folder that Help > About > Folders calls "Personal Lua Plugins".
--
-- It takes UDP port 4791 and gives everything that is not XP to the dissector that had the port before, so that standard RoCE
-- looks as it always does.

local xp = Proto("optinic_xp", "OptiNIC XP")

local ROCE_PORT, XP_BASE = 4791, 0xE0
local BTH, XPETH, RETH, IMMDT, ICRC = 12, 16, 16, 4, 4

-- opcode: name, has RETH, has ImmDt, belongs to a message whose pieces have an offset
local OPCODES = {
    [0xE4] = {"SEND", false, false},
    [0xE5] = {"SEND with immediate", false, true},
    [0xEA] = {"WRITE", true, false},
    [0xEB] = {"WRITE with immediate", true, true},
    [0xEC] = {"READ request", true, false},
    [0xF0] = {"READ response", false, false},
    [0xF1] = {"feedback", false, false},
    [0xFE] = {"credit", false, false},
}
local NAMES = {}
for code, op in pairs(OPCODES) do NAMES[code] = op[1] end

local f = {
    opcode = ProtoField.uint8("optinic_xp.opcode", "Opcode", base.HEX, NAMES),
    solicited = ProtoField.bool("optinic_xp.solicited", "Solicited event", 8, nil, 0x80),
    pad_count = ProtoField.uint8("optinic_xp.pad_count", "Pad count", base.DEC, nil, 0x30),
    version = ProtoField.uint8("optinic_xp.version", "Header version", base.DEC, nil, 0x0F),
    pkey = ProtoField.uint16("optinic_xp.pkey", "Partition key", base.HEX),
    fecn = ProtoField.bool("optinic_xp.fecn", "FECN", 8, nil, 0x80),
    becn = ProtoField.bool("optinic_xp.becn", "BECN", 8, nil, 0x40),
    qpn = ProtoField.uint24("optinic_xp.qpn", "Destination QP", base.HEX),
    psn = ProtoField.uint24("optinic_xp.psn", "Packets sent before (PSN)", base.DEC),
    tracked = ProtoField.bool("optinic_xp.tracked", "Tracked: belongs to a receive", 8, nil, 0x80),
    echo = ProtoField.bool("optinic_xp.echo", "Echo requested", 8, nil, 0x40),
    generation = ProtoField.uint8("optinic_xp.generation", "Generation of the receiving QP", base.DEC),
    tag = ProtoField.uint16("optinic_xp.tag", "Tag", base.HEX),
    seq = ProtoField.uint32("optinic_xp.seq", "Message sequence", base.DEC),
    msg_len = ProtoField.uint32("optinic_xp.msg_len", "Message length", base.DEC),
    offset = ProtoField.uint32("optinic_xp.offset", "Offset in the message", base.DEC),
    va = ProtoField.uint64("optinic_xp.va", "Virtual address", base.HEX),
    rkey = ProtoField.uint32("optinic_xp.rkey", "Remote key", base.HEX),
    dma_len = ProtoField.uint32("optinic_xp.dma_len", "DMA length", base.DEC),
    imm = ProtoField.uint32("optinic_xp.imm", "Immediate data", base.HEX),
    payload = ProtoField.bytes("optinic_xp.payload", "Payload"),
    payload_len = ProtoField.uint32("optinic_xp.payload_len", "Payload length", base.DEC),
    icrc = ProtoField.uint32("optinic_xp.icrc", "Invariant CRC", base.HEX),
}
xp.fields = f

local e = {
    short = ProtoExpert.new("optinic_xp.short", "The datagram ends inside the headers", expert.group.MALFORMED, expert.severity.ERROR),
    opcode = ProtoExpert.new("optinic_xp.opcode.unknown", "An opcode that XP doesn't have", expert.group.PROTOCOL, expert.severity.ERROR),
    beyond = ProtoExpert.new("optinic_xp.beyond", "The payload goes beyond the message's length", expert.group.PROTOCOL,
                             expert.severity.ERROR),
    dma_len = ProtoExpert.new("optinic_xp.dma_len.wrong", "A WRITE's DMA length is not that of its payload", expert.group.PROTOCOL,
                              expert.severity.ERROR),
}
xp.experts = {e.short, e.opcode, e.beyond, e.dma_len}

local function base_header(buf, tree)
    local bth = tree:add(xp, buf(0, BTH), "Base transport header")
    bth:add(f.opcode, buf(0, 1))
    bth:add(f.solicited, buf(1, 1))
    bth:add(f.pad_count, buf(1, 1))
    bth:add(f.version, buf(1, 1))
    bth:add(f.pkey, buf(2, 2))
    bth:add(f.fecn, buf(4, 1))
    bth:add(f.becn, buf(4, 1))
    bth:add(f.qpn, buf(5, 3))
    bth:add(f.psn, buf(9, 3))
end

local function message_header(buf, tree)
    local part = tree:add(xp, buf, "XP extended transport header")
    part:add(f.tracked, buf(0, 1))
    part:add(f.echo, buf(0, 1))
    part:add(f.generation, buf(1, 1))
    part:add(f.tag, buf(2, 2))
    part:add(f.seq, buf(4, 4))
    part:add(f.msg_len, buf(8, 4))
    part:add(f.offset, buf(12, 4))
end

local function memory_header(buf, tree)
    local part = tree:add(xp, buf, "RDMA extended transport header")
    part:add(f.va, buf(0, 8))
    part:add(f.rkey, buf(8, 4))
    part:add(f.dma_len, buf(12, 4))
end

function xp.dissector(buf, pinfo, root)
    pinfo.cols.protocol = "XP"
    local code = buf(0, 1):uint()
    local op = OPCODES[code]
    local tree = root:add(xp, buf(), "OptiNIC XP")
    if buf:len() < BTH + XPETH + ICRC then
        tree:add_proto_expert_info(e.short)
        return
    end
    base_header(buf, tree)
    local qpn = string.format("QP=0x%06x", buf(5, 3):uint())
    if op == nil then
        tree:add_proto_expert_info(e.opcode)
        pinfo.cols.info = string.format("XP opcode 0x%02x %s", code, qpn)
        return
    end
    local name, has_reth, has_imm = op[1], op[2], op[3]
    message_header(buf(BTH, XPETH), tree)
    local at, pad = BTH + XPETH, buf(1, 1):bitfield(2, 2)
    local stop = buf:len() - ICRC - pad
    if stop < at + (has_reth and RETH or 0) + (has_imm and IMMDT or 0) then
        tree:add_proto_expert_info(e.short)
        return
    end
    local dma_len
    if has_reth then
        memory_header(buf(at, RETH), tree)
        dma_len = buf(at + 12, 4):uint()
        at = at + RETH
    end
    if has_imm then
        tree:add(f.imm, buf(at, IMMDT))
        at = at + IMMDT
    end
    local length = stop - at
    if length > 0 then
        tree:add(f.payload, buf(at, length))
    end
    tree:add(f.payload_len, length):set_generated()
    tree:add(f.icrc, buf(buf:len() - ICRC, ICRC))

    local msg_len, offset = buf(BTH + 8, 4):uint(), buf(BTH + 12, 4):uint()
    if offset + length > msg_len then
        tree:add_proto_expert_info(e.beyond)
    end
    if has_reth and code ~= 0xEC and dma_len ~= length then
        tree:add_proto_expert_info(e.dma_len)
    end
    local which = buf(BTH, 1):bitfield(0, 1) == 1 or code == 0xEC
    pinfo.cols.info = string.format("XP %s %s%s, bytes %u to %u of %u", name, qpn, which and " message " .. buf(BTH + 4, 4):uint() or "",
                                    offset, offset + length, msg_len)
end

-- What had the port before gets what is not XP.
local ports = DissectorTable.get("udp.port")
local roce = ports:get_dissector(ROCE_PORT)
local front = Proto("optinic_roce", "RoCE, with OptiNIC XP")

function front.dissector(buf, pinfo, root)
    if buf:len() >= BTH and buf(0, 1):uint() >= XP_BASE then
        return xp.dissector(buf, pinfo, root)
    end
    if roce then
        return roce:call(buf, pinfo, root)
    end
end

ports:add(ROCE_PORT, front)
