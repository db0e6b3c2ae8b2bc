"""Learning without harm: what the method `auto` gains or costs over the cosine of a recogniser, on people never seen.

    python -m papers.beyond.safe_learning --data DIR [--features mobilefacenet] [--splits 10] [--labels 200 1000 5000]
        [--methods wccn wpca] [--condition CONDITION ...] [--impostors 50] [--cache DIR] [--json FILE]

Each split learns from half of LFW's people, by labels alone, and searches for the others: a degraded photo of each
person with five or more, among all clean photos of the people not learned from. With `--impostors N`, it learns
instead from names and from the N nearest pairs of different people, labelled "not the same". Prints a table in
Markdown: mean average precision in percent, the difference to the cosine with its 95 % interval over splits, and the
worst split.
"""

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from app.threads import set_threads
from ml.embedders.auto import Auto
from ml.embedders.cosine import Cosine
from ml.evaluation.intervals import over_draws
from ml.metric_learning.selection.candidates import METHODS
from papers.beyond.degradations import CLEAN, CONDITIONS
from papers.beyond.mixed_conditions import MixedSplit, load_split
from papers.harness.photos import Photos


@dataclass(frozen=True)
class SafeFit:
    """One fit.

    cosine, gain: mean average precision, 0..1; accepted: gain in true accepts at a false-match rate of 0.1 %
    """

    condition: str
    split: int
    labels: int
    cosine: float
    gain: float
    accepted: float
    candidate: str
    seconds: float


def fit_split(split: MixedSplit, condition: str, labels: int, methods: Sequence[str], impostors: int) -> SafeFit:
    """Fit `auto` to one split and compare it with the cosine."""
    data = split.draw_named_set(impostors) if impostors else split.draw_training_set(labels)
    started = time.perf_counter()
    learned = Auto.from_options(methods=tuple(methods)).fit(data)
    seconds = time.perf_counter() - started
    before, after = split.search(Cosine()), split.search(learned)
    gain, accepted = (
        float((now - earlier).mean())
        for now, earlier in ((after.precision, before.precision), (after.accepted, before.accepted))
    )
    candidate = learned.notes["choice"]["candidate"]
    return SafeFit(condition, split.number, labels, float(before.precision.mean()), gain, accepted, candidate, seconds)


def make_row(fits: Sequence[SafeFit]) -> str:
    """Make a row of the table from the fits of one condition and number of labels."""
    cells = [fits[0].condition, f"{fits[0].labels:,}" if fits[0].labels else "names"]
    cells.append(f"{100 * np.mean([fit.cosine for fit in fits]):.1f}")
    for values in ([fit.gain for fit in fits], [fit.accepted for fit in fits]):
        difference = over_draws(100 * np.array(values))
        cells.append(f"{difference.value:+.2f} ({difference.low:+.2f} to {difference.high:+.2f})")
    cells.append(f"{100 * min(fit.gain for fit in fits):+.2f}")
    cells.append(", ".join(f"{name} {count}" for name, count in Counter(fit.candidate for fit in fits).most_common()))
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path(".likeness/reproduce"))
    parser.add_argument("--features", default="mobilefacenet")
    parser.add_argument("--splits", type=int, default=10)
    parser.add_argument("--labels", type=int, nargs="+", default=[200, 1000, 5000])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--condition", nargs="+", default=list(CONDITIONS), choices=CONDITIONS)
    parser.add_argument("--impostors", type=int, default=0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    set_threads(1)
    photos, fits = Photos(options.data, options.cache), list[SafeFit]()
    print("| searches | labels | cosine | mAP less cosine | true accepts less cosine | worst split | chosen |")
    print("|---|---|---|---|---|---|---|")
    for condition in [CLEAN] if options.impostors else options.condition:
        splits = [load_split(photos, options.features, condition, number) for number in range(options.splits)]
        for labels in [0] if options.impostors else options.labels:
            row = [fit_split(split, condition, labels, options.methods, options.impostors) for split in splits]
            fits += row
            print(make_row(row), flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(fit) for fit in fits], indent=1))


if __name__ == "__main__":
    main()
