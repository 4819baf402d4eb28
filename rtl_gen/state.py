"""State on the chip, in bits by table, from the design's own list of tables.

A table whose rows belong to QPs costs every QP its bits; the others are shared, and are shown with what they come to
for each QP when all QPs exist.
"""

__all__ = ["state_of"]

IN_TRANSIT = ("beat", "frame", "line")      #: what rows of buffers and caches are for


def state_of(cfg, tables=None):
    """{"tables": [...], "bits_per_qp": ..., ...} of configuration `cfg`; `tables` replaces the design's own. Check bits are in the
    bits. "item_bits" are those of tables with a row for an item, not of packets and cached lines on their way; "secded_share" is the share of
    these in rows whose single errors are corrected."""
    if tables is None:
        from optinic.nic import Nic
        tables = Nic.tables(cfg)
    rows = [{"table": t.name, "owner": t.owner, "kind": t.kind, "per": t.per, "width": t.width, "depth": t.depth,
             "copies": t.reads, "style": t.style, "bits": t.bits, "protection": t.protection, "check_bits": t.row_bits - t.width,
             "bits_per_item": t.bits_per_item, "bits_per_qp": t.bits_per_item if t.per == "qp" else t.bits / cfg.num_qps}
            for t in tables]
    rows.sort(key=lambda row: (row["per"] != "qp", row["per"], row["table"]))
    own = [row for row in rows if row["per"] == "qp"]
    by_kind = {}
    for row in own:
        by_kind[row["kind"]] = by_kind.get(row["kind"], 0) + row["bits_per_qp"]
    bits = sum(row["bits_per_qp"] for row in own)
    items = sum(row["bits"] for row in rows if row["per"] not in IN_TRANSIT)
    copies = sum(row["bits_per_qp"] - row["bits_per_qp"] / row["copies"] for row in own)
    return {
        "num_qps": cfg.num_qps,
        "tables": rows,
        "bits_per_qp": bits,
        "bits_per_qp_without_copies": bits - copies,
        "bits_per_qp_by_kind": by_kind,
        "shared_bits": sum(row["bits"] for row in rows if row["per"] != "qp"),
        "total_bits": sum(row["bits"] for row in rows),
        "item_bits": items,
        "secded_share": sum(row["bits"] for row in rows if row["protection"] == "secded") / items if items else 0.0,
    }
