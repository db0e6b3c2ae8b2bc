"""`likeness evaluate`: measure methods by published protocols (`lfw`) and open sets, on a service of its own."""

import json
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from app.cli.client import console, read_answer, wait_for_job
from app.cli.datasets import lfw
from app.cli.datasets.evaluate_openset import choose_rows, evaluate_openset, show_openset, write_json
from app.cli.private_service import run_service
from app.config import DLIB_RESNET, LBP
from app.storage.recognisers.catalogue import DLIB_OPTIONS
from ml import registry
from ml.descriptors.dlib_resnet import is_installed
from ml.evaluation.plots import page
from ml.evaluation.records import EvaluationReport

COLLECTION = "lfw"
CLOSED, UNSEEN, PAIRS = "queries", "disjoint", "pairs"
KINDS = {CLOSED: "retrieval", UNSEEN: "disjoint", PAIRS: "verification"}
PROTOCOL_NOTE = "queries: closed set, 423; disjoint: people apart from training"
RANKED, JUDGED = ("map", "1-call@1", "1-call@10"), ("accuracy", "auc", "eer")
METHODS: dict[str, dict[str, Any]] = {
    "L2": {"method": "l2"},
    "WPCA-cosine 32": {"method": "wpca", "dim": 32, "options": {"unit": True}},
    "LDML 32": {"method": "ldml", "dim": 32},
    "CLML 32, k=16": {"method": "clml", "dim": 32, "options": {"k": 16}},
}


def evaluate(
    dataset: Annotated[str, typer.Argument(help="lfw, or openset: strangers search too")],
    data: Annotated[
        Path,
        typer.Option(
            exists=True,
            file_okay=False,
            help="folder with LFW's archives and lfw-protocol; for openset also a folder of <person>/<photo>",
        ),
    ],
    draws: Annotated[int, typer.Option(min=1, max=10, help="protocol files of each kind, averaged")] = 3,
    only: Annotated[
        list[str] | None, typer.Option(help="only methods whose names begin like this; may be repeated")
    ] = None,
    manifest: Annotated[
        list[Path] | None,
        typer.Option(exists=True, help="manifest of a recogniser's file, as one more row; may be repeated"),
    ] = None,
    pairs: Annotated[
        bool, typer.Option(help="judge the ten folds of pairs.txt as well: fifteen fits more a method")
    ] = False,
    home: Annotated[Path, typer.Option(help="home of the service, which the next run uses again")] = Path(
        ".likeness/evaluate"
    ),
    recogniser: Annotated[
        list[str] | None, typer.Option(help="openset: by these; may be repeated; default: dlib_resnet and lbp")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="write the rows as JSON")] = None,
    plots: Annotated[Path | None, typer.Option(help="write DET, ROC and CMC of every row, as one HTML page")] = None,
) -> None:
    """Import LFW once; then, for each method, fit on the training side and rank the whole gallery.

    openset: for each recogniser, half of the held-out people are enrolled, and the other half are strangers.
    """
    manifests = name_manifests(manifest or [])
    if dataset == "openset":
        _evaluate_openset_rows(data, home, manifests, recogniser, draws, out)
        return
    if dataset != "lfw":
        raise typer.BadParameter("there are: lfw, openset", param_hint="DATASET")
    methods = choose_methods(list(manifests), only or [""])
    source = lfw.LfwDataset(data)
    with run_service(home, **make_settings(manifests)) as client:
        _import_lfw(client, source)
        rows: list[dict[str, Any]] = []
        for name, options in methods.items():
            for protocol in (CLOSED, UNSEEN, PAIRS) if pairs else (CLOSED, UNSEEN):
                first = next((r["evaluation"] for r in rows if r["protocol"] == protocol), None)
                rows.append(_evaluate_row(client, source, name, options, protocol, draws, first))
    _print_table([r for r in rows if r["protocol"] != PAIRS], RANKED, f"mean of {draws} draws ± SD; {PROTOCOL_NOTE}")
    if pairs:
        _print_table([r for r in rows if r["protocol"] == PAIRS], JUDGED, "ten folds of pairs, mean ± SD over folds")
    if out is not None:
        out.write_text(json.dumps(rows, indent=1))
    if plots is not None:
        reports = {f"{r['method']}, {r['protocol']}": r["report"]["pooled"] for r in rows if r["protocol"] != PAIRS}
        plots.write_text(page({name: EvaluationReport.from_dict(report) for name, report in reports.items()}))


def _evaluate_openset_rows(
    data: Path, home: Path, manifests: dict[str, Path], recogniser: list[str] | None, draws: int, out: Path | None
) -> None:
    rows = choose_rows(recogniser, list(manifests), home)
    with run_service(home, import_roots=json.dumps([str(data.resolve())]), **make_settings(manifests)) as client:
        measured = evaluate_openset(client, data, rows, draws)
    show_openset(measured, draws)
    write_json(measured, out)


def name_manifests(paths: list[Path]) -> dict[str, Path]:
    """Each manifest by its file's name without the suffix. Raises typer.BadParameter where a name is taken."""
    names = [path.stem for path in paths]
    conflicts = sorted(
        set(registry.names("descriptors")).intersection(names) | {n for n in names if names.count(n) > 1}
    )
    if conflicts:
        raise typer.BadParameter(f"rename the files: {', '.join(conflicts)} is taken", param_hint="--manifest")
    return dict(zip(names, paths, strict=True))


def choose_methods(recognisers: list[str], only: list[str]) -> dict[str, dict[str, Any]]:
    """Return the rows of the table: name -> request for a training.

    recognisers: names of the manifests of the caller; only: see `evaluate`
    """
    networks: dict[str, dict[str, Any]] = {
        f"{name}, cosine": {"method": "cosine", "descriptor": name} for name in recognisers
    }
    if is_installed():
        networks["dlib_resnet, cosine"] = {
            "method": "cosine",
            "descriptor": {"name": DLIB_RESNET, "options": DLIB_OPTIONS},
        }
    begins = tuple(word.lower() for word in only)
    return {name: options for name, options in (METHODS | networks).items() if name.lower().startswith(begins)}


def make_settings(manifests: dict[str, Path]) -> dict[str, str]:
    """Return the settings of the service, with the manifests of the caller."""
    paths = {name: str(path.resolve()) for name, path in manifests.items()}
    return {"default_recogniser": LBP, "descriptor_manifests": json.dumps(paths)}


def _import_lfw(client: httpx.Client, source: lfw.LfwDataset) -> None:
    read_answer(client.put(f"/v1/collections/{COLLECTION}", json={"description": "Labeled Faces in the Wild"}))
    if read_answer(client.get(f"/v1/collections/{COLLECTION}"))["face_count"]:
        return
    for archive in source.archives:
        with archive.open("rb") as body:
            headers = {"Content-Type": "application/x-tar"}
            answer = client.post(f"/v1/collections/{COLLECTION}:import", content=body, headers=headers)
        job = wait_for_job(client, answer, f"import {archive.name}")
        console.print(f"{job['progress']['done']:,} enrolled, {job['progress']['failed']:,} refused")


def _evaluate_row(
    client: httpx.Client,
    source: lfw.LfwDataset,
    name: str,
    options: dict[str, Any],
    protocol: str,
    draws: int,
    against: str | None,
) -> dict[str, Any]:
    names = ["pairs.txt"] if protocol == PAIRS else [f"{protocol}-{i}.txt" for i in range(draws)]
    files = [source.protocol / n for n in names]
    body = {
        "collection": COLLECTION,
        "protocol": KINDS[protocol],
        "files": [{"name": f.name, "text": f.read_text()} for f in files],
        "training": {"descriptor": "lbp"} | options,
        "against": against,
    }
    job = wait_for_job(client, client.post("/v1/evaluations", json=body), f"{name}, {protocol}")
    return {"method": name, "protocol": protocol, **job["result"]}


def _print_table(rows: list[dict[str, Any]], figures: tuple[str, ...], title: str) -> None:
    """Print the table. The last column compares with the first method, on the same queries or folds."""
    against = f"{figures[0]} against {rows[0]['method']}"
    table = Table("method", "protocol", *figures, against, "seconds a fit", title=f"LFW deep-funneled, {title}")
    for row in rows:
        report = row["report"]
        shown = [_format_figure(report, figure) for figure in figures]
        seconds = report["mean"].get("fit_seconds", 0.0)
        table.add_row(row["method"], row["protocol"], *shown, _format_difference(report, figures[0]), f"{seconds:.0f}")
    console.print(table)


def _format_figure(report: dict[str, Any], figure: str) -> str:
    spread = report["sd"].get(figure)
    return f"{100 * report['mean'][figure]:.1f}" + ("" if spread is None else f" ± {100 * spread:.1f}")


def _format_difference(report: dict[str, Any], figure: str) -> str:
    """Format the difference in points, with its 95 % interval and the p of the permutation test."""
    if "against" not in report:
        return ""
    difference = report["against"]["difference"][figure]
    value, low, high = (100 * difference[name] for name in ("value", "low", "high"))
    return f"{value:+.1f} [{low:+.1f}, {high:+.1f}], p {difference['p']:.2g}"
