"""Lists and answers of receipts, as the routes for erasures build them. No server runs."""

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, delete
from sqlalchemy.orm import Session

from app.db.session import writing
from app.db.tables import Base, Erasure
from app.deps import paging
from app.erasures.schemas import ErasureOut
from app.erasures.service import get_erasure, list_erasures
from app.errors import NotFound
from app.galleries.erasure_receipts import build_receipt, is_receipt_signed, sign_receipt
from app.resources import Resources


@pytest.fixture
def session(lasting_sqlite: Resources) -> Iterator[Session]:
    """Three receipts of the collection a, and one of b."""
    with writing(lasting_sqlite.database) as opened:
        for number, collection in enumerate("aaba"):
            opened.add(
                Erasure(
                    id=f"e{number}", collection_id=collection, collection_created_at=1.0, target="face", change=1,
                    first_change=1, contents={"removed": {"faces": number}}, signature=f"s{number}",
                )
            )  # fmt: skip
        opened.flush()
        yield opened
        opened.execute(delete(Erasure))


def list_ids(session: Session, collection: str | None, token: str | None = None, order: str = "newest") -> list[str]:
    page = list_erasures(session, collection, order, 2, token)  # type: ignore[arg-type]
    more = list_ids(session, collection, page.next_token, order) if page.next_token else []
    return [erasure.id for erasure in page.erasures] + more


def test_receipts_are_listed_in_pages_in_both_orders_for_one_collection_or_all(session: Session) -> None:
    assert list_ids(session, None) == ["e3", "e2", "e1", "e0"]
    assert list_ids(session, None, order="oldest") == ["e0", "e1", "e2", "e3"]
    assert list_ids(session, "a") == ["e3", "e1", "e0"]
    assert list_ids(session, "b") == ["e2"]
    assert list_ids(session, "c") == []
    first = list_erasures(session, None, "newest", 2, None)
    assert (len(first.erasures), first.erasures[0].signature) == (2, "s3")


def test_few_receipts_beyond_a_page_of_large_ones_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fingerprints of one may have 6.5 MB, and those of 1,000 were read for each page."""
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 1_000)
    database, measured = create_engine("sqlite://"), list[int]()
    Base.metadata.create_all(database, [Erasure.metadata.tables["erasures"]])
    with Session(database) as session:
        for number in range(40):
            session.add(
                Erasure(
                    id=f"f{number:02}", collection_id="c", collection_created_at=1.0, target="face", change=1,
                    first_change=1, contents={"removed": {}}, fingerprints=500 * [number],
                )
            )  # fmt: skip
        session.flush()
        sqlite = session.connection().connection.driver_connection
        assert sqlite is not None
        sqlite.create_function("length", 1, lambda text: measured.append(len(text)) or measured[-1])
        first = list_erasures(session, "c", "newest", 1_000, None)
        assert [erasure.id for erasure in first.erasures] == ["f39"]
        assert 1 <= sum(size > 1_000 for size in measured) <= 11
        second = list_erasures(session, "c", "newest", 1_000, first.next_token)
        assert [erasure.id for erasure in second.erasures] == ["f38"]
    database.dispose()


def test_a_receipt_is_found_by_its_id(session: Session) -> None:
    found = get_erasure(session, "e2")
    assert (found.id, found.collection, found.removed, found.signature) == ("e2", "b", {"faces": 2}, "s2")
    with pytest.raises(NotFound, match=r"^no erasure 'none'$"):
        get_erasure(session, "none")


def test_the_answer_of_a_receipt_is_what_was_signed(session: Session, lasting_sqlite: Resources) -> None:
    key, row = lasting_sqlite.installation_key, session.get_one(Erasure, "e0")
    row.signature = sign_receipt(key, row)
    answer = ErasureOut.of(row).model_dump()
    signature = answer.pop("signature")
    assert answer == build_receipt(row)
    assert is_receipt_signed(key, answer, signature)
    assert not is_receipt_signed(key, answer | {"removed": {"faces": 1}}, signature)
