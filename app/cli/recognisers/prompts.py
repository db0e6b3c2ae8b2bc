"""Questions on the terminal, each with a default and with the option that answers it beforehand."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

import typer


@dataclass(frozen=True)
class Prompts:
    """ask: False takes every default without a question."""

    ask: bool

    def text(self, question: str, default: str, option: str) -> str:
        """Raises typer.BadParameter where it should ask and there is no terminal."""
        if not self.ask:
            return default
        if not sys.stdin.isatty():
            raise typer.BadParameter(
                "there is no terminal to ask on: state it, or add --yes for the defaults", param_hint=option
            )
        return str(typer.prompt(question, default=default)).strip()

    def choice(self, question: str, choices: Sequence[str], option: str) -> str:
        """One of these, the first by default. Raises as `text`."""
        while True:
            answer = self.text(f"{question} ({' or '.join(choices)})", choices[0], option)
            if answer in choices:
                return answer
            typer.echo(f"{answer!r} is none of {', '.join(choices)}")
