"""Time the pages of lists over HTTP, of a collection with many faces on SQLite.

    python -m benchmarks.list_pages [--faces 200000] [--pages 40]

Each list is read from its start, 100 entries a page, by an admin who is bound to no collection and by one who is bound
to this one. Four faces are of one person. The times are medians.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks.load.private_gallery import COLLECTION, run_private_service, write_gallery

READY_POLL_SECONDS, SETTLE_SECONDS = 0.5, 20.0
LISTS = ("faces", "faces?order=newest", "faces?role=gallery", "subjects")


def wait_until_ready(client: httpx.Client) -> None:
    """Wait until the service has loaded its index, and has measured it."""
    while client.get("/readyz").status_code != 200:
        time.sleep(READY_POLL_SECONDS)
    time.sleep(SETTLE_SECONDS)


def time_pages(client: httpx.Client, path: str, pages: int, headers: dict[str, str]) -> float:
    """Return the median time of a page, in milliseconds."""
    milliseconds, token = list[float](), None
    while len(milliseconds) < pages and (token or not milliseconds):
        url = httpx.URL(f"/v1/collections/{COLLECTION}/{path}")
        if token:
            url = url.copy_merge_params({"next_token": token})
        started = time.perf_counter()
        answer = client.get(url, headers=headers).raise_for_status()
        milliseconds.append(1e3 * (time.perf_counter() - started))
        token = answer.json()["next_token"]
    return statistics.median(milliseconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=int, default=200_000)
    parser.add_argument("--pages", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_gallery(Path(folder), options.faces)
        with run_private_service(Path(folder)) as (client, _):
            wait_until_ready(client)
            bound = client.post("/v1/keys", json={"role": "admin", "name": "bound", "collections": [COLLECTION]})
            keys = {"unbound": {}, "bound": {"x-api-key": bound.raise_for_status().json()["key"]}}
            for path in LISTS:
                times = (f"{name} {time_pages(client, path, options.pages, key):.1f} ms" for name, key in keys.items())
                print(f"{path:20} {', '.join(times)}")


if __name__ == "__main__":
    main()
