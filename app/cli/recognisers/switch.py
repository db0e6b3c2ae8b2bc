"""`likeness recognisers use` and `rollback`: over a running service."""

from typing import Annotated, Any

import typer

from app.cli.client import connect, console, read_answer, wait_for_job

Collection = Annotated[str, typer.Option(help="id of the collection")]
Url = Annotated[str | None, typer.Option(help="address of the service; default LIKENESS_URL")]


def use(
    name: Annotated[str, typer.Argument(help="of `likeness recognisers list`")],
    collection: Collection,
    override: Annotated[str, typer.Option(help="publish against the gate, for this reason")] = "",
    url: Url = None,
) -> None:
    """Describe a collection's stored crops by this recogniser and search by it; no photo is sent again."""
    body = {"recogniser": name} | ({"override": True, "reason": override} if override else {})
    with connect(url) as client:
        answer = client.post(f"/v1/collections/{collection}:use-recogniser", json=body)
        result = wait_for_job(client, answer, f"describe by {name}, publish")
    _show_result(result.get("result") or result, collection, name)


def _show_result(result: dict[str, Any], collection: str, name: str) -> None:
    console.print(f"{collection} is searched by {name} (model {result['model']})", soft_wrap=True)
    console.print(f"to go back: likeness recognisers rollback --collection {collection}", soft_wrap=True)


def rollback(collection: Collection, url: Url = None) -> None:
    """Let what served before serve again, at once; twice is back and forth."""
    with connect(url) as client:
        path = f"/v1/collections/{collection}/deployments/identity"
        wait_for_job(client, client.post(f"{path}:rollback"), "roll back")
        serving = read_answer(client.get(path))["champion"]
    console.print(f"{collection} is searched by the model {serving} again", soft_wrap=True)
