"""The command line as one object: what it is called, what it says of itself, and what is asked of every command."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    name="blendfilter",
    help="Retrieval-augmented question answering that blends queries and filters knowledge, evaluated honestly.",
    epilog="Exit codes: 0 done; 1 the work failed, wholly or for some questions, or too many replies were bad; "
    "2 what was asked is wrong; 3 a budget is spent, and the same command with a higher one goes on.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


@app.callback()
def _options(debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False) -> None:
    State.debug = debug


class State:
    """What `main` must know after a command failed."""

    debug = False
    goes_on = False
    """Whether the command, stopped and given again, goes on where it was."""
