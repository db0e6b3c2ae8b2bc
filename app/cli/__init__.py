"""`likeness`: the service and its tools, from a terminal."""

from app.cli.main import main

__all__ = ["main"]
