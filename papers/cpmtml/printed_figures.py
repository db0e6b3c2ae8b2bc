"""The figures of 002: 1-call@K in percent, without distractors and with a million."""

from collections.abc import Mapping

CALL_RANKS = (2, 5, 10, 20)
DIMS = (32, 64, 128)
Name = tuple[str, str]
"""A method and its auxiliary task, "" if it has none."""

WPCA, STML = ("WPCA", ""), ("stML", "")
UTML, MTLMCA, CPMTML = "utML", "mtLMCA", "CP-mtML"

# Tables 2 and 6 (LBP), Table 3 (CNN), d = 64: @2 @5 @10 @20
FIGURES_AT_DIM_64: Mapping[str, Mapping[Name, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "lbp": {
        WPCA: ((30.0, 37.4, 43.3, 51.3), (24.6, 28.8, 33.8, 39.0)),
        STML: ((38.1, 51.1, 60.5, 69.3), (26.0, 37.4, 43.3, 48.7)),
        (UTML, "expression"): ((31.0, 38.1, 48.5, 57.9), (20.3, 25.8, 31.9, 38.5)),
        (MTLMCA, "expression"): ((29.3, 40.7, 48.0, 61.0), (19.9, 28.4, 34.8, 40.0)),
        (CPMTML, "expression"): ((43.5, 55.6, 63.6, 69.5), (33.1, 43.3, 51.1, 55.3)),
        (UTML, "age"): ((21.7, 31.4, 41.1, 53.0), (12.8, 18.9, 24.6, 31.7)),
        (MTLMCA, "age"): ((27.4, 39.7, 50.4, 61.0), (18.7, 24.6, 29.8, 35.5)),
        (CPMTML, "age"): ((46.1, 56.0, 63.4, 68.3), (35.7, 43.5, 47.8, 52.2)),
    },
    "mobilefacenet": {
        WPCA: ((72.1, 80.4, 83.7, 89.1), (65.2, 72.1, 75.9, 78.7)),
        STML: ((76.8, 85.1, 89.6, 92.0), (70.7, 78.0, 82.0, 84.2)),
        (UTML, "expression"): ((73.5, 82.3, 87.2, 90.3), (67.1, 76.8, 79.0, 82.0)),
        (CPMTML, "expression"): ((76.8, 86.5, 90.3, 93.4), (71.2, 79.7, 83.2, 85.3)),
        (UTML, "age"): ((73.0, 82.0, 88.2, 91.0), (68.1, 76.1, 81.1, 82.7)),
        (CPMTML, "age"): ((76.8, 85.8, 90.3, 93.6), (71.2, 79.0, 83.0, 85.1)),
    },
}

# Table 4: 1-call@10 at d = 32, 64, 128
FIGURES_AT_RANK_10: Mapping[str, Mapping[Name, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "lbp": {
        WPCA: ((34.3, 43.3, 52.5), (23.4, 33.8, 40.4)),
        STML: ((50.1, 60.5, 63.6), (33.3, 43.3, 51.3)),
        (UTML, "expression"): ((44.2, 48.5, 57.4), (25.3, 31.9, 31.9)),
        (CPMTML, "expression"): ((55.6, 63.6, 70.2), (37.6, 51.1, 54.6)),
        (UTML, "age"): ((37.6, 41.1, 51.5), (17.5, 24.6, 34.0)),
        (CPMTML, "age"): ((52.5, 63.4, 69.0), (34.3, 47.8, 53.9)),
    },
    "mobilefacenet": {
        WPCA: ((83.9, 83.7, 85.6), (74.5, 75.9, 75.2)),
        STML: ((88.4, 89.6, 88.7), (80.6, 82.0, 81.6)),
        (UTML, "expression"): ((85.1, 87.2, 86.3), (73.0, 79.0, 78.3)),
        (CPMTML, "expression"): ((88.7, 90.3, 89.4), (81.3, 83.2, 81.1)),
        (UTML, "age"): ((85.3, 88.2, 86.5), (76.6, 81.1, 79.2)),
        (CPMTML, "age"): ((88.2, 90.3, 89.6), (80.9, 83.0, 81.6)),
    },
}

# Table 5: LBP, d = 32, 25,000 pairs: @10 @20
BOOSTED: Mapping[Name, tuple[tuple[float, ...], tuple[float, ...]]] = {
    ("MLBoost", ""): ((54.1, 63.4), (34.3, 39.5)),
    (CPMTML, "expression"): ((58.9, 69.5), (38.1, 45.6)),
    (CPMTML, "age"): ((61.5, 70.7), (39.7, 47.8)),
}

# Table 1: LBP, d = 64, expression: @2 @5 @10 @20
PROJECTION_FIGURES: Mapping[str, tuple[float, ...]] = {
    "L0": (30.3, 38.1, 43.3, 51.8),
    "L1": (35.0, 46.6, 55.8, 64.8),
    "L2": (4.5, 7.6, 10.4, 13.0),
    "L0 + L1": (43.5, 55.6, 63.6, 69.5),
}


def calls(figures: tuple[float, ...]) -> dict[str, float]:
    """Return figures by column, for tables of @2 @5 @10 @20 or of @10 @20."""
    return {f"1@{k}": value for k, value in zip(CALL_RANKS[-len(figures) :], figures, strict=True)}


def printed(features: str, name: Name, dim: int, crowd: bool = False) -> dict[str, float]:
    """Return the figures of Tables 2, 3, 4 and 6 by column; empty if there are none."""
    wide, narrow = FIGURES_AT_DIM_64[features].get(name), FIGURES_AT_RANK_10[features].get(name)
    if dim == 64 and wide:
        return calls(wide[crowd])
    return {"1@10": narrow[crowd][DIMS.index(dim)]} if narrow and dim in DIMS else {}


def gap(features: str, name: Name, dim: int, other: int) -> dict[str, float]:
    """Return this method minus stML in Table 4, each at its own d."""
    a, b = (printed(features, one, d).get("1@10") for one, d in ((name, dim), (STML, other)))
    return {} if a is None or b is None else {"1@10": round(a - b, 1)}
