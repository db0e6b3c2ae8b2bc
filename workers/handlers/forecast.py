"""Forecast how many strangers a collection names, and how many people it finds, as it grows. Nothing is changed."""

from dataclasses import asdict
from typing import Any

import numpy as np

from app.db.tables import now
from app.errors import Conflict
from app.queue.messages import ForecastGrowth
from ml.errors import TooFewPairs
from ml.evaluation.intervals import Interval
from ml.identification.growth_measurement import GrowthCheck, GrowthSearches, check_forecast, list_points
from ml.identification.open_set import PersonThreshold
from workers.context import JobContext
from workers.forecasting.gallery import ForecastGallery, read_gallery
from workers.progress import PROGRESS_STEPS, ProgressReporter, report_progress, to_json_values

SEARCHES_END, CHECK_END = 500, 700


def forecast_growth(message: ForecastGrowth, context: JobContext) -> dict[str, Any]:
    """Return the report, as `ForecastOut` describes it.

    Raises NotFound, Conflict (NotCalibrated), Interrupted, ml.Corrupt, ml.Unavailable.
    """
    gallery = read_gallery(context, message.collection, message.fpir)
    report: dict[str, Any] = {
        "collection": message.collection,
        "model": gallery.model.id,
        "faces": len(gallery.people.ids),
        "people": int(gallery.people.is_named.sum()),
        "distractors": int(gallery.people.is_distractor.sum()),
        "fpir": gallery.fpir,
        "distance": None,
        "enough": False,
        "trained_here": gallery.is_trained_here,
        "unmeasured_reason": None,
        "points": [],
        "check": None,
    }
    with report_progress(context) as reporter:
        try:
            report |= _measure(gallery, reporter)
        except TooFewPairs as error:
            report["unmeasured_reason"] = f"{error.missing} more people with a name are needed"
        reporter.phase("done", PROGRESS_STEPS, PROGRESS_STEPS)(1, 1, {})
    return to_json_values(report | {"finished_at": now()})  # type: ignore[no-any-return]


def _measure(gallery: ForecastGallery, reporter: ProgressReporter) -> dict[str, Any]:
    """Return the entries of the report that need searches. Raises TooFewPairs, Conflict (NotCalibrated)."""
    searching = reporter.phase("searches", 0, SEARCHES_END)
    checking = reporter.phase("check", SEARCHES_END, CHECK_END)
    predicting = reporter.phase("sizes", CHECK_END, PROGRESS_STEPS)
    searches = GrowthSearches.run(
        gallery.index,
        gallery.people,
        gallery.rule,
        has_learned=gallery.is_trained_here,
        check=lambda done, total: searching(done, total, {}),
    )
    threshold = _find_threshold(gallery, searches)
    distance = threshold.person_distance
    check = check_forecast(gallery.index, searches, distance, lambda done, total: checking(done, total, {}))
    points = list_points(searches, distance, gallery.fpir, lambda done, total: predicting(done, total, {}))
    return {
        "distance": distance,
        "enough": threshold.enough,
        "points": [asdict(point) for point in points],
        "check": _describe_check(check),
    }


def _find_threshold(gallery: ForecastGallery, searches: GrowthSearches) -> PersonThreshold:
    """Return the threshold that serves, or else one from these searches. Raises Conflict (NotCalibrated)."""
    threshold = gallery.threshold or searches.find_threshold(gallery.fpir)
    if threshold is None or not np.isfinite(threshold.person_distance):
        raise Conflict("no threshold is measured here yet: enrol more people with a name first", code="NotCalibrated")
    return threshold


def _describe_check(check: GrowthCheck | None) -> dict[str, Any] | None:
    if check is None:
        return None
    return {
        "faces": check.faces,
        "people": check.people,
        "strangers_named": _compare(check.strangers_named),
        "distractors_named": _compare(check.distractors_named),
        "people_found": _compare(check.people_found),
    }


def _compare(pair: tuple[Interval, Interval] | None) -> dict[str, Any] | None:
    if pair is None:
        return None
    predicted, measured = pair
    is_inside = predicted.low <= measured.value <= predicted.high
    return {"predicted": asdict(predicted), "measured": asdict(measured), "is_inside": is_inside}
