"""A map of a gallery: two coordinates for each face, and how far the picture can be believed."""

from ml.atlas.base import MAP_METHODS, MIN_FACES, GalleryMap, MapMethod, check_map_rows
from ml.atlas.neighbours import NeighbourAgreement, measure_neighbours
from ml.atlas.pca_map import PcaMap
from ml.atlas.tsne_map import TsneMap, require_tsne

__all__ = [
    "MAP_METHODS",
    "MIN_FACES",
    "GalleryMap",
    "MapMethod",
    "NeighbourAgreement",
    "PcaMap",
    "TsneMap",
    "check_map_rows",
    "measure_neighbours",
    "require_tsne",
]
