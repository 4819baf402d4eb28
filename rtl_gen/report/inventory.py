"""What a mapped design is made of, in the units that an account of soft errors needs."""

__all__ = ["inventory_of"]

#: bits that a LUT site of a distributed RAM holds. ECP5: sixteen in each LUT4, but two of six LUTs only write.
LUT_BITS = {"xcup": 64, "xc7": 64, "ecp5": 16 * 4 / 6}


def inventory_of(family, transport, cells, state, memories):
    """The inventory of one design, a plain dict of numbers:

    =================  ==================================================================================================
    "family"           "xcup", "xc7" or "ecp5"
    "transport"        "xp" or "rc"
    "lut"              LUTs in all: as logic, as distributed RAM and as shift registers (ECP5: LUT4)
    "lut_logic"        of these, LUTs that hold logic, whose truth tables are configuration bits
    "ff"               registers (flip-flops and latches)
    "lutram_bits"      bits of LUTs that serve as distributed RAM or shift registers, used or not
    "bram36"           block RAMs of 36 Kib; a RAMB18 counts one half and is also in "bram18" (Xilinx), a DP16KD is 18 Kib
    "bram18"           block RAMs of 18 Kib, each one counted once: RAMB18, or DP16KD on ECP5; not those in "ramb36"
    "ramb36"           of the block RAMs, those that are whole RAMB36
    "uram"             UltraRAMs, 288 Kib each
    "dsp"              DSP blocks
    "block_ram_bits"   bits of the block RAMs that the design occupies, parity bits included: 36,864 for each "bram36"
    "uram_bits"        294,912 for each "uram"
    "table_bits"       bits that the design's own tables hold, copies for further read ports included: what of the
                       memory is state, and not padding of a block RAM
    "qp_table_bits"    of these, bits of rows that belong to queue pairs
    "buffer_bits"      bits that all other memories of the design hold (buffers and queues), copies included
    "secded_share"     share of the tables' bits whose single errors are corrected
    =================  ==================================================================================================

    `cells` is `count_cells` of the netlist, `state` what `rtl_gen.state.state_of` says, `memories` the rows of
    `rtl_gen.report.memories.check`.
    """
    tables = state["tables"]
    return {
        "family": family, "transport": transport,
        "lut": cells["lut"], "lut_logic": cells["lut_logic"], "ff": cells["ff"],
        "lutram_bits": round((cells["lut_ram"] + cells["lut_srl"]) * LUT_BITS[family]),
        "bram36": cells["bram36"], "bram18": cells["ramb18"], "ramb36": cells["ramb36"],
        "uram": cells["uram"], "dsp": cells["dsp"],
        "block_ram_bits": int(cells["bram36"] * 36_864), "uram_bits": cells["uram"] * 294_912,
        "table_bits": sum(row["bits"] for row in tables),
        "qp_table_bits": sum(row["bits"] for row in tables if row["per"] == "qp"),
        "buffer_bits": sum(row["width"] * row["depth"] * max(1, row["copies"]) for row in memories if not row["table"]),
        "secded_share": state["secded_share"],
    }
