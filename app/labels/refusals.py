"""Collect the labels that are refused: all are counted, the first are listed."""

from app.errors import Invalid
from app.labels.schemas import MAX_LISTED_REFUSALS, Refused


class Refusals:
    """The refused records of a request. They are added in the order of their numbers."""

    def __init__(self) -> None:
        self.count = 0
        self.listed: list[Refused] = []

    def add(self, index: int, code: str, detail: str) -> None:
        self.count += 1
        if len(self.listed) < MAX_LISTED_REFUSALS:
            self.listed.append(Refused(index=index, code=code, detail=detail))

    def merge(self, others: "Refusals") -> None:
        """Add those of another check of the same request."""
        self.count += others.count
        self.listed = sorted((*self.listed, *others.listed), key=lambda r: r.index)[:MAX_LISTED_REFUSALS]

    def make_error(self) -> Invalid:
        """Return the answer to a request none of whose labels is valid."""
        if not self.listed:
            return Invalid("the body contains no label", accepted=0, refused=[], refused_count=0)
        first = self.listed[0]
        detail = first.detail if self.count < 2 else f"none of the {self.count:,} labels is valid; {first.detail}"
        listed = [refused.model_dump() for refused in self.listed]
        return Invalid(detail, code=first.code, accepted=0, refused=listed, refused_count=self.count)
