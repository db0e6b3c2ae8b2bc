"""000, Tables 4 and 5: accuracies, and the differences between their rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from papers.cosim.pair_scores import ACCURACY, PairScoreReader, SystemScores
from papers.cosim.system_catalogue import ALTERED, SUB
from papers.harness.table_types import Figure, Row, Table

PARAMETERS, DIFFERENCE, YTF = "thousand parameters", "difference", "YouTube Faces"
LATE, FVF, JSML = "SML-S ⊕ SML-L", "FVF", "JSML"
PAPER_ACCURACY = {
    "LDML": 79.27, "SML-S": 82.05, "SML-L": 84.01, LATE: 86.66, "CoSiM-m": 86.90, "CoSiM-a": 87.01, JSML: 87.33,
    FVF: 87.47, SUB: 89.73, f"{JSML} ⊕ {SUB}": 90.20, f"{JSML} ⊕ {FVF}": 90.72, f"{SUB} ⊕ {FVF}": 91.87,
    f"{JSML} ⊕ {FVF} ⊕ {SUB}": 92.64,
}  # fmt: skip
PAPER_SPREAD_POINTS = 1.1
"""Points: the standard deviation over folds that 000 prints for its own systems."""
COMPARED_SYSTEMS = (
    (LATE, "SML-L"), ("CoSiM-m", LATE), ("CoSiM-a", LATE), ("CoSiM-a", "CoSiM-m"), (JSML, LATE),
    (f"{JSML} ⊕ {SUB}", SUB), (f"{JSML} ⊕ {FVF}", FVF), (f"{SUB} ⊕ {FVF}", SUB),
    (f"{JSML} ⊕ {FVF} ⊕ {SUB}", f"{SUB} ⊕ {FVF}"),
)  # fmt: skip
PAPER_YTF_ACCURACY = {
    "FPLBP, cosine": 61.94, "FPLBP, Euclidean": 62.32, "LBP, cosine": 62.72, "LBP, Euclidean": 62.91,
    "LBP, SML": 65.88, "FPLBP, SML": 68.04, "both, CoSiM-m": 69.92, "both, CoSiM-a": 71.27,
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class AccuracyTables:
    """Tables of accuracies.

    header: data, folds and unit; scores: all systems and fusions by name; figures: their accuracies in percent
    """

    reader: PairScoreReader
    header: str
    scores: Mapping[str, SystemScores]
    figures: Mapping[str, Figure]

    @classmethod
    def of(cls, reader: PairScoreReader, header: str, system_scores: Mapping[str, SystemScores]) -> "AccuracyTables":
        return cls(reader, header, system_scores, {name: reader.accuracy(one) for name, one in system_scores.items()})

    def table_5(self, notes: Sequence[str]) -> Table:
        ours = [
            n
            for n in self.scores
            if n not in PAPER_ACCURACY and n not in PAPER_YTF_ACCURACY and not n.startswith("SIFT, ")
        ]
        rows = [self._row(name) for name in (*PAPER_ACCURACY, *ours) if name in self.scores]
        title = "Table 5: LFW view 2, restricted"
        return Table("table-5", title, self.header, [ACCURACY, PARAMETERS], rows, notes=notes)

    def differences(self, more: Sequence[tuple[str, str]]) -> Table:
        """Test each claim of the paper that one system is better than another, fold by fold."""
        rows = [self._paired(a, b) for a, b in (*COMPARED_SYSTEMS, *more) if {a, b} <= self.scores.keys()]
        title = "Table 5, paired: is one better than the other?"
        header = (
            f"{self.header} Differences fold by fold, in points, interval and p of the corrected t (Nadeau, Bengio)."
        )
        return Table("table-5-paired", title, header, [DIFFERENCE], rows)

    def table_4(self) -> Table:
        """Table 4, on LFW instead of YouTube Faces."""
        rows = [
            Row(
                name, {"LFW": self.figures[name]}, {YTF: paper}, "not possible here",
                "YouTube Faces is not here", computations=self.scores[name].computations,
            )
            for name, paper in PAPER_YTF_ACCURACY.items()
        ]  # fmt: skip
        header = f"{self.header} LFW stands in for YouTube Faces, with the features that the paper took there."
        title = "Table 4, on LFW: LBP and FPLBP"
        return Table("table-4", title, header, ["LFW", YTF], rows, notes=self._test_orders())

    def _row(self, name: str) -> Row:
        system_scores, figure, paper = self.scores[name], self.figures[name], PAPER_ACCURACY.get(printed_name(name))
        figures = {ACCURACY: figure, PARAMETERS: Figure(system_scores.parameters / 1000)}
        printed = {} if paper is None else {ACCURACY: paper}
        about = {"folds": list(self.reader.numbers), "protocol": "pairs.txt, restricted"}
        changed = altered(name) if paper is not None else ""
        return Row(
            name,
            figures,
            printed,
            cause=self._explain_shortfall(name),
            about=about,
            computations=system_scores.computations,
            altered=changed,
        )

    def _explain_shortfall(self, name: str) -> str:
        """Explain a figure below the paper's, as far as other rows show."""
        figure, paper = self.figures[name], PAPER_ACCURACY.get(name)
        if name != printed_name(name):
            return f"{self.figures[printed_name(name)].value:.1f} with our whitening, unit length and step"
        if paper is None or figure.high >= paper or paper - figure.value <= 1:
            return ""
        lower = [
            part
            for part in name.split(" ⊕ ")
            if part != name and part in PAPER_ACCURACY and self._measure_shortfall(part) > 1
        ]
        if lower:
            worst = max(lower, key=self._measure_shortfall)
            return f"its part {worst} is {self._measure_shortfall(worst):.1f} below the paper's"
        reason = "none of its parts is more than a point below the paper's: what they know is less different here"
        return reason if "⊕" in name else ""

    def _measure_shortfall(self, name: str) -> float:
        return PAPER_ACCURACY[name] - self.figures[name].value if name in self.figures else 0.0

    def _paired(self, a: str, b: str) -> Row:
        comparison = self.reader.difference(self.scores[a], self.scores[b])
        one, gain = comparison.difference, PAPER_ACCURACY.get(a, 0.0) - PAPER_ACCURACY.get(b, 0.0)
        printed = {DIFFERENCE: round(gain, 2)} if {a, b} <= PAPER_ACCURACY.keys() else {}
        cause = f"p {comparison.corrected:.2g}"
        if printed and gain < PAPER_SPREAD_POINTS:
            cause += f"; the paper's own difference is below its spread over folds, {PAPER_SPREAD_POINTS}"
        return Row(
            f"{a} less {b}", {DIFFERENCE: Figure(one.value, one.low, one.high)}, printed, cause=cause,
            computations=(*self.scores[a].computations, *self.scores[b].computations), differences=(DIFFERENCE,),
            altered=(altered(a) or altered(b)) if printed else "",
        )  # fmt: skip

    def _test_orders(self) -> list[str]:
        """Test the paper's conclusions from the order of its rows."""
        claims = (
            ("LBP, SML", "LBP, Euclidean"), ("FPLBP, SML", "FPLBP, Euclidean"), ("FPLBP, SML", "LBP, SML"),
            ("both, CoSiM-m", "LBP, SML"), ("both, CoSiM-m", "FPLBP, SML"), ("both, CoSiM-a", "both, CoSiM-m"),
        )  # fmt: skip
        statements = []
        for a, b in claims:
            comparison = self.reader.difference(self.scores[a], self.scores[b])
            one, paper = comparison.difference, PAPER_YTF_ACCURACY[a] - PAPER_YTF_ACCURACY[b]
            verdict = "same sign" if one.low > 0 else "other sign" if one.high < 0 else "no difference shown"
            statements.append(
                f"{a} less {b}: {one.value:+.1f} [{one.low:+.1f}, {one.high:+.1f}], p {comparison.corrected:.2g}"
                f" (on YouTube Faces {paper:+.1f}): {verdict}."
            )
        return statements


def printed_name(name: str) -> str:
    """Return the paper's name of a system that was also fitted as printed."""
    return name.removesuffix(", as printed")


def altered(name: str) -> str:
    """Describe how a system, or a member of a fusion, differs from the paper's; empty if it does not."""
    parts = {own for part in name.split(" ⊕ ") for own in (part, part.split(",")[0])}
    return next((why for part, why in ALTERED.items() if part in parts), "") if printed_name(name) == name else ""
