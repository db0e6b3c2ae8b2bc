"""003, Figure 6: all faces on a plane, as points without photos or names."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ml.types import Ids, Rows
from papers.clml.fits import DESCRIPTOR_NAMES, ClmlFits
from papers.clml.table_rows import TableComputations, make_retrieval_row
from papers.harness.table_types import Computation, Figure, Plot, Row, Table

SHOWN_PEOPLE = 40
FISHER_DIM, LOCAL_MAP_COUNT = 256, 12
PRINTED = {"LDML": 80.8, "CLML": 81.9}
COLUMNS = ("mAP", "1@10", "same neighbour on the plane", "variance on the plane")


def make_person_map(fits: ClmlFits) -> TableComputations:
    """Figure 6."""
    quick = fits.context.scope.quick
    features, dim = ("lbp", 32) if quick else ("fisher", FISHER_DIM)
    options = fits.options(features)
    methods = {"LDML": options.of_ldml(dim), "CLML": options.of_clml(None if quick else LOCAL_MAP_COUNT, dim)}
    computations = {name: fits.context.retrieval(method, features, "queries-0") for name, method in methods.items()}

    def table() -> Table:
        people = fits.context.protocol("queries-0").people
        maps = {
            name: on_plane(fits.context.result(computation).arrays["lfw"]) for name, computation in computations.items()
        }
        rows = [_row(fits, name, computations[name], people, maps[name], features) for name in computations]
        k_text = f"k = {LOCAL_MAP_COUNT}" if not quick else "k as chosen"
        header = (
            f"LFW, {DESCRIPTOR_NAMES[features]}, d = {dim}, CLML with {k_text}, `queries-0`; PCA of the embeddings "
            "to two "
            f"numbers; percent. Same neighbour: of the photos of the {SHOWN_PEOPLE} people with most, how many have "
            "one of the "
            "same person nearest on the plane, among those."
        )
        notes = [
            "the paper also colours by gender, with labels that are not available here: not possible here",
            "the people are not named; colours repeat",
        ]
        plot = Plot(
            "clml-figure-6",
            f"two maps of LFW, the {SHOWN_PEOPLE} most frequent people in colours",
            partial(_draw, maps, people),
            columns=2,
        )
        return Table("figure-6", "Figure 6: the map", header, COLUMNS, rows, [plot], notes)

    return TableComputations(list(computations.values()), table)


def on_plane(embedded: Rows) -> tuple[NDArray[np.float64], float]:
    """Project embeddings to a plane: (N, 2), and the share of the variance that remains."""
    middle = embedded.astype(np.float64) - embedded.mean(0, dtype=np.float64)
    strength, axes = np.linalg.eigh(middle.T @ middle)
    return middle @ axes[:, -2:][:, ::-1], float(strength[-2:].sum() / strength.sum())


def frequent(people: Ids, top: int = SHOWN_PEOPLE) -> Ids:
    """Return the people with the most photos."""
    numbers, counts = np.unique(people[people >= 0], return_counts=True)
    return numbers[np.argsort(-counts, kind="stable")[:top]]


def neighbours(points: NDArray[np.float64], people: Ids) -> float:
    """Return the share of the most frequent people's points whose nearest point shows the same person."""
    shown = np.flatnonzero(np.isin(people, frequent(people)))
    x, who = points[shown], people[shown]
    distances = ((x[:, None] - x[None]) ** 2).sum(2)
    np.fill_diagonal(distances, np.inf)
    return float((who[distances.argmin(1)] == who).mean())


def _row(fits: ClmlFits, name: str, computation: Computation, people: Ids, map_and_variance: Any, features: str) -> Row:
    paper = {"mAP": PRINTED[name]} if features == "fisher" else {}
    row = make_retrieval_row(fits, features, name, [computation], paper)
    more = {
        COLUMNS[2]: Figure(100 * neighbours(map_and_variance[0], people)),
        COLUMNS[3]: Figure(100 * map_and_variance[1]),
    }
    return replace(row, figures={**row.figures, **more})


def _draw(maps: Any, people: Ids, axes: Any) -> None:
    from matplotlib import colormaps

    top = frequent(people)
    colours = colormaps["tab20"]
    for panel, (name, (points, _)) in enumerate(maps.items()):
        rest = ~np.isin(people, top)
        axes[panel].scatter(*points[rest].T, s=0.5, color="0.8", rasterized=True)
        for i, person in enumerate(top):
            axes[panel].scatter(*points[people == person].T, s=3, color=colours(i % 20), rasterized=True)
        axes[panel].set(title=name, xticks=[], yticks=[])
