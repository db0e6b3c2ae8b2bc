"""003, CLML: the tables and figures of "Coordinated Local Metric Learning"."""

from collections.abc import Sequence

from app.cli.reproduce.lab import Lab, Method
from app.cli.reproduce.plan import Chapter, Row, Table, Work
from app.cli.reproduce.results import figures

COLUMNS = ("mAP", "1@10")
LDML = Method("ldml", 32)
PAPER = {"L2": {"mAP": 13.24}, "LDML": {"mAP": 36.95}}


def chapter(lab: Lab) -> Chapter:
    rows = {"L2": _draws(lab, Method("l2")), "LDML": _draws(lab, LDML)}

    def works() -> list[Work]:
        return [w for row in rows.values() for w in row]

    def tables() -> Sequence[Table]:
        header = f"LFW, LBP, {lab.scope.draws} draws of the queries, closed set; mAP and 1-call@10 in percent."
        made = [
            Row(name, figures(lab.results(works), COLUMNS), PAPER[name], works=works) for name, works in rows.items()
        ]
        return [Table("table-2", "Table 2: retrieval by the number of local metrics", header, COLUMNS, made)]

    return Chapter("clml", "CLML (003)", works, tables)


def _draws(lab: Lab, method: Method) -> list[Work]:
    return [lab.retrieval(method, "lbp", f"queries-{i}") for i in lab.scope.seeds]
