"""Draw plots as SVG files. Equal figures give equal bytes."""

from pathlib import Path
from typing import Any

import numpy as np

from papers.harness.table_types import Curves, Plot


def draw(plot: Plot, path: Path) -> None:
    """Draw a plot to an SVG file."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "likeness", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    from matplotlib import pyplot

    size = (5.5 * plot.columns, 3.8 * plot.rows)
    figure, axes = pyplot.subplots(plot.rows, plot.columns, figsize=size, layout="constrained")
    plot.draw(axes)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def line_plot(name: str, alt: str, lines: Curves) -> Plot:
    """Make a plot of curves that the JSON keeps, with panels side by side and the legend in the first."""

    def draw_lines(axes: Any) -> None:
        panels = np.atleast_1d(axes)
        for panel, (title, curves) in zip(panels, lines.panels.items(), strict=True):
            for label, values in curves.items():
                panel.plot(range(1, len(values) + 1), values, label=label)
            panel.set(xlabel=lines.xlabel, ylabel=lines.ylabel, title=title)
        panels[0].legend(fontsize=7)

    return Plot(name, alt, draw_lines, columns=len(lines.panels), lines=lines)
