"""The report of a model's evaluation, which can be stored as JSON."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from ml.errors import Corrupt
from ml.evaluation.intervals import Interval
from ml.evaluation.separation import Dispersion, Separation


@dataclass(frozen=True)
class DetPoint:
    threshold: float | None
    fmr: float
    fnmr: float


@dataclass(frozen=True)
class DistractorPoint:
    """Retrieval with this many distractors added to the gallery."""

    distractors: int
    mean_average_precision: Interval
    one_call_at_10: Interval


@dataclass(frozen=True)
class EvaluationReport:
    """Retrieval under one protocol. Rates are 0..1.

    draws: number of pooled query draws; queries: number of queries with a relevant face in the gallery
    gallery: faces that are ranked for each query, distractors included; relevant: relevant faces in total
    chance_at_10: 1-call@10 of a random ranking; sd: SD over draws of each metric, None for a single draw
    ncall, fnir: by K and by FPIR (keys as text); cmc: at ranks 1 to 50, with its interval cmc_low to cmc_high
    det: curve over the query-gallery pairs of all draws, thinned for plotting; eer: as in `separation`
    separation: AUC, EER, FNMR and dispersion of those pairs, averaged over draws; nearest_error: 1 - 1-call@1
    Intervals are 95 % bootstrap intervals over people, all draws of a person together. Fields that reports of older
    versions lack are empty or None.
    """

    protocol: str
    task: str
    metric: Literal["l2", "ip", "average"]
    draws: int
    queries: int
    gallery: int
    relevant: int
    chance_at_10: float
    mean_average_precision: Interval
    ncall: dict[str, Interval]
    cmc: tuple[float, ...]
    fnir: dict[str, Interval]
    eer: float
    det: tuple[DetPoint, ...]
    sd: dict[str, float] | None = None
    distractor_curve: tuple[DistractorPoint, ...] = ()
    cmc_low: tuple[float, ...] = ()
    cmc_high: tuple[float, ...] = ()
    nearest_error: Interval | None = None
    separation: Separation | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Self:
        """Restore what `to_dict` returned, through JSON or not. Raises Corrupt."""
        try:
            return cls(
                **state
                | {
                    "mean_average_precision": Interval(**state["mean_average_precision"]),
                    "ncall": {k: Interval(**v) for k, v in state["ncall"].items()},
                    "fnir": {k: Interval(**v) for k, v in state["fnir"].items()},
                    **{name: tuple(state.get(name, ())) for name in ("cmc", "cmc_low", "cmc_high")},
                    "det": tuple(DetPoint(**p) for p in state["det"]),
                    "distractor_curve": tuple(_distractor_point(p) for p in state["distractor_curve"]),
                    "nearest_error": Interval(**state["nearest_error"]) if state.get("nearest_error") else None,
                    "separation": _separation(state["separation"]) if state.get("separation") else None,
                }
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise Corrupt(f"this is not a report: {error}") from error


def _distractor_point(state: dict[str, Any]) -> DistractorPoint:
    return DistractorPoint(
        state["distractors"],
        Interval(**state["mean_average_precision"]),
        Interval(**state["one_call_at_10"]),
    )


def _separation(state: dict[str, Any]) -> Separation:
    return Separation(
        Interval(**state["eer"]),
        Interval(**state["auc"]),
        {rate: Interval(**v) for rate, v in state["fnmr"].items()},
        Dispersion(**{name: Interval(**v) for name, v in state["dispersion"].items()}),
    )
