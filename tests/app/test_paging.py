"""Pages of lists: bounded by their number of entries and by the bytes of their metadata."""

import pytest

from app.deps import paging
from tests.service import Service

SUBJECTS = "/v1/collections/staff/subjects"


@pytest.fixture
def names(lasting_service: Service) -> list[str]:
    """The ids of seven subjects, each with 400 bytes of metadata."""
    lasting_service.client.put("/v1/collections/staff").raise_for_status()
    made = [f"s{number}" for number in range(7)]
    for name in made:
        lasting_service.client.put(f"{SUBJECTS}/{name}", json={"metadata": {"note": name * 200}}).raise_for_status()
    return made


def read_pages(service: Service, limit: int) -> list[list[str]]:
    """The ids of the subjects on each page."""
    pages, token = list[list[str]](), None
    while not pages or token:
        params = {"limit": limit} | ({"next_token": token} if token else {})
        answer = service.client.get(SUBJECTS, params=params).json()
        pages.append([subject["id"] for subject in answer["subjects"]])
        token = answer["next_token"]
    return pages


@pytest.mark.parametrize(
    ("limit", "max_bytes", "sizes"),
    [(10, 10_000, [7]), (7, 10_000, [7]), (3, 10_000, [3, 3, 1]), (10, 1_000, [3, 3, 1]), (10, 1, [1] * 7)],
)
def test_a_page_ends_at_its_limit_or_when_it_has_enough_bytes(
    lasting_service: Service, names: list[str], monkeypatch: pytest.MonkeyPatch,
    limit: int, max_bytes: int, sizes: list[int],
) -> None:  # fmt: skip
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", max_bytes)
    pages = read_pages(lasting_service, limit)
    assert [len(page) for page in pages] == sizes
    assert [name for page in pages for name in page] == names
