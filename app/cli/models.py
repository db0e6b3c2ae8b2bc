"""`likeness models`: refit a model without some people, and sign models that were put back; and two older names."""

from typing import Annotated

import typer

from app.cli.client import connect, console, read_answer, wait_for_job
from app.cli.detectors import pull
from app.cli.home import read_settings, require_database
from app.cli.recognisers.cnn_training import train_cnn
from app.cli.recognisers.pinned_files import moved
from app.db.session import close_database, open_database, writing
from app.startup import exit_with_reason
from app.storage.audit_log.chain import AuditChain
from app.storage.audit_log.drafts import EntryDraft
from app.storage.model_signatures import iterate_model_folders, open_model_signer, sign_models

app = typer.Typer(help="Models that were trained.", no_args_is_help=True)


@app.command()
def without(
    subjects: Annotated[list[str], typer.Argument(help="ids of the subjects whom the model shall never have seen")],
    model: Annotated[str, typer.Option(help="id of the model; default: the champion of the collection")] = "",
    collection: Annotated[str, typer.Option(help="id of the subjects' collection")] = "",
    url: Annotated[str | None, typer.Option(help="address of the service; default LIKENESS_URL")] = None,
) -> None:
    """Refit a model without some people, erased or not. The result is the model that never saw them."""
    if not model and not collection:
        raise typer.BadParameter("name the model with --model, or the collection whose champion it is")
    with connect(url) as client:
        path = f"/v1/collections/{collection}/deployments/identity"
        model = model or read_answer(client.get(path))["champion"]
        body = {"without": subjects} | ({"collection": collection} if collection else {})
        job = wait_for_job(client, client.post(f"/v1/models/{model}:refit", json=body), f"refit {model}")
    console.print(f"{job['result']['model']} never saw {', '.join(subjects)}. Publish it, then archive {model}.")


@app.command()
def sign() -> None:
    """Sign the models in this service's home whose files are whole, after models were copied there from elsewhere."""
    settings = read_settings()
    require_database(settings)
    models = settings.model_folder
    with exit_with_reason(settings):
        database = open_database(settings.database, settings.home)
        with writing(database) as session:
            AuditChain(settings.home).append(session, [EntryDraft.make("model.sign")])
        close_database(database)
    count = sign_models(iterate_model_folders(models), open_model_signer(settings.home, models))
    console.print(f"signed {count} models")


app.command("pull", hidden=True)(moved(pull, "detectors pull"))
app.command("train-cnn", hidden=True)(moved(train_cnn, "recognisers train-cnn"))
