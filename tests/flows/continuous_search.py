"""A client that keeps searching while the service trains and changes models."""

import threading

import httpx

PAUSE_SECONDS = 0.05
"""The time between two searches. Without it, they would take the cores from the training that they wait for."""


class ContinuousSearch(threading.Thread):
    """Search collection `c` with an aligned photo, again and again, until the context ends.

    failures: errors, refusals and answers without a match; models: the model of each answer, in order
    """

    def __init__(self, client: httpx.Client, photo: bytes) -> None:
        super().__init__(daemon=True)
        self.client, self.photo = client, photo
        self.failures: list[str] = []
        self.models: list[str] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        with httpx.Client(base_url=self.client.base_url, headers=self.client.headers, timeout=30) as client:
            while not self.stopping.wait(PAUSE_SECONDS):
                try:
                    answer = client.post("/v1/collections/c/search?aligned=true", files={"file": self.photo})
                except httpx.TransportError as error:
                    self.failures.append(repr(error))
                    continue
                if answer.status_code == 200 and answer.json()["faces"][0]["matches"]:
                    self.models.append(answer.json()["model"])
                else:
                    self.failures.append(answer.text)

    def __enter__(self) -> "ContinuousSearch":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.join(30)
