"""Plot the DET, ROC and CMC curves of one or more reports on one page that needs no network."""

from collections.abc import Mapping
from typing import Any

from ml.evaluation.records import EvaluationReport

COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
BAND_OPACITY = 0.15
"""Opacity of an interval's band."""


def figures(reports: Mapping[str, EvaluationReport]) -> dict[str, dict[str, Any]]:
    """Return the figures `det`, `roc` and `cmc`, each {"data", "layout"} for plotly. Lines are named by report."""
    lines: dict[str, list[dict[str, Any]]] = {"det": [], "roc": [], "cmc": []}
    for i, (name, report) in enumerate(reports.items()):
        style = {"name": name, "legendgroup": name, "line": {"color": COLOURS[i % len(COLOURS)]}}
        seen = [p for p in report.det if p.fmr > 0 and p.fnmr > 0]
        lines["det"].append({"x": [p.fmr for p in seen], "y": [p.fnmr for p in seen], "mode": "lines", **style})
        accepted = {"x": [p.fmr for p in report.det], "y": [1 - p.fnmr for p in report.det]}
        lines["roc"].append(accepted | {"mode": "lines", **style})
        lines["cmc"] += [*_band(report, style), {"x": _places(report), "y": list(report.cmc), "mode": "lines", **style}]
    return {name: {"data": data, "layout": _layout(name)} for name, data in lines.items()}


def page(reports: Mapping[str, EvaluationReport]) -> str:
    """Return an HTML page with the three figures."""
    from plotly.io import to_html  # imported here, because it takes a second to load

    charts = figures(reports).values()
    parts = [to_html(one, full_html=False, include_plotlyjs=not i) for i, one in enumerate(charts)]
    return f"<!doctype html><meta charset=utf-8><title>Evaluation</title>{''.join(parts)}"


def _places(report: EvaluationReport) -> list[int]:
    return list(range(1, len(report.cmc) + 1))


def _band(report: EvaluationReport, style: dict[str, Any]) -> list[dict[str, Any]]:
    if not report.cmc_low:
        return []
    ranks = _places(report)
    around = {"x": [*ranks, *reversed(ranks)], "y": [*report.cmc_high, *reversed(report.cmc_low)]}
    quiet = {
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "legendgroup": style["name"],
    }
    shade = {"fill": "toself", "fillcolor": style["line"]["color"], "opacity": BAND_OPACITY}
    return [around | quiet | shade]


def _layout(name: str) -> dict[str, Any]:
    titles = {
        "det": ("Errors of pairs (DET)", "false-match rate", "false-non-match rate"),
        "roc": ("Pairs (ROC)", "false-match rate", "true-match rate"),
        "cmc": ("Found among the first k (CMC), with 95 % intervals", "k", "share of searches"),
    }
    title, x, y = titles[name]
    scale = {"type": "log"} if name == "det" else {}
    across = {"type": "log"} if name != "cmc" else {}
    return {"title": {"text": title}, "xaxis": {"title": {"text": x}} | across, "yaxis": {"title": {"text": y}} | scale}
