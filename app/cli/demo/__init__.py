"""`likeness demo`: the whole loop on a temporary service, and the story of corrections."""

import typer

from app.cli.demo.corrections import demo_corrections
from app.cli.demo.loop import demo

app = typer.Typer(help=demo.__doc__)
app.callback(invoke_without_command=True)(demo)
app.command("corrections")(demo_corrections)
