"""`likeness models`: two commands under the names that they had before, which say what they are called now."""

import typer

from app.cli.detectors import pull
from app.cli.recognisers.cnn_training import train_cnn
from app.cli.recognisers.pinned_files import moved

app = typer.Typer(help="Moved: see `likeness detectors` and `likeness recognisers`.", no_args_is_help=True)
app.command("pull")(moved(pull, "detectors pull"))
app.command("train-cnn")(moved(train_cnn, "recognisers train-cnn"))
