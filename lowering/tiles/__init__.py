"""Tile analysis: which tiles of keys a tile of queries visits, and which of these need no mask code."""

from attn_dsl.lowering.tiles.analysis import MAX_BOXES, TileAnalysis, analyze
from attn_dsl.lowering.tiles.binding import Binding
from attn_dsl.lowering.tiles.columns import Bound, ColumnForm, Columns, Piece
from attn_dsl.lowering.tiles.direction import Direction
from attn_dsl.lowering.tiles.grid import Segment, TileCounts, TileGrid
from attn_dsl.lowering.tiles.report import TableStep

__all__ = [
    "MAX_BOXES",
    "Binding",
    "Bound",
    "ColumnForm",
    "Columns",
    "Direction",
    "Piece",
    "Segment",
    "TableStep",
    "TileAnalysis",
    "TileCounts",
    "TileGrid",
    "analyze",
]
