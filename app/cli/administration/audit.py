"""`likeness audit`: verify the audit log in the service's database."""

from typing import Annotated

import typer

from app.cli.home import read_settings, require_database
from app.db.session import close_database, open_database
from app.startup import exit_with_reason
from app.storage.audit_log.chain import AuditChain
from app.storage.audit_log.verification import verify_chain

app = typer.Typer(help="The audit log.", no_args_is_help=True)


@app.callback()
def _audit() -> None:
    """The audit log."""


@app.command()
def verify(
    after: Annotated[int, typer.Option(min=0, help="leave out this entry and those before it")] = 0,
) -> None:
    """Check that no entry of the audit log was altered or removed. Exits with 1 and names the first that was."""
    settings = read_settings()
    require_database(settings)
    with exit_with_reason(settings):
        database = open_database(settings.database, settings.home)
        try:
            verified = verify_chain(database, AuditChain(settings.home), after)
        finally:
            close_database(database)
    print(f"{verified.entries:,} entries hold", end="")
    print(f": {verified.first:,} to {verified.last:,}, mac {verified.mac}" if verified.entries else "")
    for fault in verified.faults:
        print(fault)
    raise typer.Exit(1 if verified.faults else 0)
