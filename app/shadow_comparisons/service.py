"""Describe how a challenger compares with the champion."""

from typing import Literal

from fastapi import Response
from sqlalchemy.orm import Session

from app.db.tables import Deployment, ShadowTotals
from app.deps.deployment_path import DeploymentPath
from app.publishing.pointers import get_deployment
from app.serving.shadow.totals import SUMMED_COLUMNS
from app.shadow_comparisons.schemas import ComparedMeanOut, ComparedShareOut, ShadowComparisonOut, SkippedSearchesOut


def describe_comparison(session: Session, path: DeploymentPath, response: Response) -> ShadowComparisonOut:
    """Describe the totals of the present champion and challenger; zeros if nothing was counted. Raises NotFound.

    The ETag is the deployment's version.
    """
    deployment = get_deployment(session, path.collection, path.task)
    response.headers["ETag"] = f'"{deployment.version}"'
    models = (deployment.champion, deployment.challenger)
    stored = session.get(ShadowTotals, (path.collection, path.task, *models)) if deployment.challenger else None
    totals = stored or ShadowTotals(**dict.fromkeys(SUMMED_COLUMNS, 0))
    return ShadowComparisonOut(
        collection=path.collection,
        task=path.task,
        status=_find_status(deployment),
        shadow_share=deployment.shadow_share,
        champion=deployment.champion,
        challenger=deployment.challenger,
        since=stored.since if stored else None,
        updated_at=stored.updated_at if stored else None,
        compared=totals.compared,
        same_first=ComparedShareOut.from_counts(totals.same_first, totals.compared),
        same_decision=ComparedShareOut.from_counts(totals.same_decision, totals.decided),
        named_by_both=ComparedShareOut.from_counts(totals.named_by_both, totals.decided),
        named_differently=ComparedShareOut.from_counts(totals.named_differently, totals.named_by_both),
        named_by_champion_only=ComparedShareOut.from_counts(totals.named_by_champion_only, totals.decided),
        named_by_challenger_only=ComparedShareOut.from_counts(totals.named_by_challenger_only, totals.decided),
        overlap=ComparedMeanOut.from_sums(totals.compared, totals.overlap, totals.overlap_squares),
        probability_difference=ComparedMeanOut.from_sums(
            totals.probabilities, totals.probability_difference, totals.probability_difference_squares
        ),
        broken_labels=ComparedShareOut.from_counts(totals.broken_labels, totals.labels),
        mended_labels=ComparedShareOut.from_counts(totals.mended_labels, totals.labels),
        skipped=SkippedSearchesOut(vectors=totals.vectors, not_ready=totals.not_ready, failed=totals.failed),
        dropped=totals.dropped,
    )


def _find_status(deployment: Deployment) -> Literal["running", "off", "no challenger"]:
    if deployment.shadow_share <= 0:
        return "off"
    return "running" if deployment.challenger else "no challenger"
