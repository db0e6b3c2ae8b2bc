"""The headers and notes of CoSiM's tables."""

from collections.abc import Sequence

from papers.cosim.pair_scores import SystemScores
from papers.cosim.system_catalogue import OUR_CHANGES, PRINTED_OPTIONS, PRINTED_STEPS, SystemCatalogue
from papers.cosim.systems import View2


def header(view: View2, folds: Sequence[int]) -> str:
    fold_count = "ten folds" if len(folds) == len(view.folds) else f"{len(folds)} of ten folds"
    pairs = sum(len(view.folds[fold].same) for fold in folds)
    return (
        f"LFW deep-funneled, view 2 (pairs.txt), {fold_count}, {pairs:,} pairs; restricted: nothing is learned from but"
        " the given pairs of the nine other folds, of which one judges (it stops the fit, and sets threshold,"
        " normalisation and fusion). Descriptors are our own; the paper has LBP and SIFT of LFW-a from [10]. "
        "Percent, ± over folds,"
        " [95 % over people]. SML and CoSiM, unless a row says as printed, are altered: "
        f"{OUR_CHANGES}."
    )


def notes(catalogue: SystemCatalogue, joint: Sequence[SystemScores]) -> list[str]:
    """Return the notes of Table 5. joint: both forms of CoSiM"""
    sentences = [
        f"Steps: {catalogue.steps} minibatches of 128 at most; the paper stops after 1,000 epochs without a gain on"
        " a set that it does not name.",
        f"LDML: d = {catalogue.dim} on SIFT, from the given pairs. JSML: SML-S, SML-L, CoSiM-m and CoSiM-a; the paper"
        " does not list its members. Late fusion: Platt's log-odds, weighed by a linear SVM, both by the"
        " judges' pairs.",
    ]
    seconds = sum(r.record["seconds"] for one in joint for r in one.results)
    sentences.append(f"Both CoSiM: {seconds:.0f} seconds, the principal components of the descriptors not counted.")
    if catalogue.quick:
        return [
            *sentences,
            "--quick leaves out Fisher vectors, and with them the paper's last rows, and the long runs.",
        ]
    options = ", ".join(f"{name}={value}" for name, value in PRINTED_OPTIONS.items())
    return [
        *sentences,
        f"As printed: {options}, {PRINTED_STEPS} steps.",
        "FVF: a weight for each squared difference by a linear SVM, as [41] does in this protocol; its vocabulary was"
        " learned without labels from LFW photos that no protocol names. FV: that, SML and Sub-SML, fused.",
    ]
