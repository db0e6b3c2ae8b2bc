"""002, Table 1: what each projection of CP-mtML does for identity: the shared one, its own, the other task's."""

from dataclasses import dataclass, replace
from pathlib import Path

from ml.embedders.base import Progress
from ml.embedders.cpmtml import Cpmtml
from ml.evaluation.report import rank_protocol
from papers.cpmtml.fits import Fits
from papers.cpmtml.learners import COUPLED, NEXT, Setting
from papers.cpmtml.paper import CALLS, PARTS, calls
from papers.cpmtml.tasks import FER, MOOD
from papers.harness.lab import ranked_arrays
from papers.harness.plan import Found, Row, Table, Work
from papers.harness.results import figures
from papers.harness.verdicts import judged

COLUMNS = (*(f"1@{k}" for k in CALLS), "mAP")
DIM = 64
WHOLE = "L0 + L1"
NOTE = (
    "L2 begins with the components of its own task's faces. Expression has LFW's here, so that it is no stranger to "
    "them, as FACES was in the paper; with FER it is."
)


@dataclass(frozen=True, eq=False)
class Parts:
    """Read off the fits of Table 2."""

    fits: Fits

    def works(self) -> list[Work]:
        return [work for setting in self.settings() for work in self._of(setting)]

    def settings(self) -> list[Setting]:
        """CP-mtML with expression beside."""
        asked = [
            one for one in (*COUPLED, *NEXT) if one.aux == MOOD or (one.aux == FER and not self.fits.lab.scope.quick)
        ]
        return self.fits.possible([Setting(one, "lbp", DIM) for one in asked])

    def table(self, header: str) -> Table:
        rows = [row for setting in self.settings() for row in self._rows(setting)]
        title = f"Table 1: which projection does what, for identity, d = {DIM}"
        return Table("table-1", title, header, COLUMNS, rows, notes=[NOTE])

    def _of(self, setting: Setting) -> list[Work]:
        """One a draw, of a few, each after the fit of its draw."""
        few = len(self.fits.lab.scope.few_seeds)
        return [self._work(setting, fit, draw) for draw, fit in enumerate(self.fits.works(setting)[:few])]

    def _work(self, setting: Setting, fit: Work, draw: int) -> Work:
        def run(folder: Path, progress: Progress) -> Found:
            lab = self.fits.lab
            found = lab.result(fit)
            whole, rows = found.arrays["lfw"], lab.photos.rows("lfw", setting.features)
            other = Cpmtml.load(found.folder / "embedder").embed(rows, setting.learner.aux)
            shared, own = whole[:, :DIM], whole[:, DIM:]
            asked = lab.protocol(f"queries-{draw}")
            parts = {"L0": shared, "L1": own, "L2": other[:, DIM:], WHOLE: whole}
            ranked = [ranked_arrays(rank_protocol(z, asked), name) for name, z in parts.items()]
            return {}, {name: array for one in ranked for name, array in one.items()}

        return Work(f"projections of {fit.name}", {"projections of": dict(fit.key)}, 12.0, run)

    def _rows(self, setting: Setting) -> list[Row]:
        works = self._of(setting)
        results = self.fits.lab.results(works)
        paper = {name: calls(found) if setting.learner.aux == MOOD else {} for name, found in PARTS.items()}
        rows = [
            Row(
                f"{name}, {setting.learner.title}",
                figures(results, COLUMNS, name),
                paper[name],
                works=works,
                altered=setting.learner.altered,
            )
            for name in PARTS
        ]
        whole = judged(rows[-1])
        return [row if judged(row) != "worse" else replace(row, cause=_cause(row, whole)) for row in rows]


def _cause(row: Row, whole: str) -> str:
    """Of a part that is worse than printed."""
    if row.name.startswith(WHOLE):
        return "see its row in Tables 2 and 6"
    if whole == "worse":
        return f"so is {WHOLE}"
    return f"{WHOLE} is not: the work is divided otherwise"
