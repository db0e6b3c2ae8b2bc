"""`likeness`: the service and its tools, from a terminal."""

from importlib.metadata import entry_points

import typer

from app.cli import compare, demo, detectors, evaluate, export, keys, models, recognisers, serve, use

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.command()(serve.serve)
app.command()(serve.worker)
app.command()(serve.migrate)
app.command("import")(use.import_)
app.command()(use.search)
app.command()(use.train)
app.command()(use.publish)
app.command()(compare.compare)
app.command()(demo.demo)
app.command()(evaluate.evaluate)
app.command("export-embeddings")(export.export_embeddings)
app.add_typer(keys.app, name="keys")
app.add_typer(recognisers.app, name="recognisers")
app.add_typer(detectors.app, name="detectors")
app.add_typer(models.app, name="models", hidden=True)
for command in entry_points(group="likeness.commands"):
    app.command(command.name)(command.load())


def main() -> None:
    app()
