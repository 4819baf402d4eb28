"""Who on the link has which address: what an operating system does for its network cards, for a card that has none.

`Neighbours` belongs to a Context (`ctx.neighbours`) and lives from the card's pass-through stream: it answers ARP, neighbour
solicitations and echo requests, asks for addresses itself, and keeps what else came for the program.
"""

from .host import Neighbours
from .table import Neighbour

__all__ = ["Neighbours", "Neighbour"]
