"""The command line as one object: how a command takes its options, how `--help` shows them, and how a command ends."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from copy import copy
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from blendfilter.cli.console import say, show
from blendfilter.cli.given import from_file, settle
from blendfilter.cli.options import PANELS
from blendfilter.errors import BlendFilterError, on_the_command_line
from blendfilter.terminal import guarded
from blendfilter.text import visible

INTERRUPTED = 130
"""What shells and typer call the end by Ctrl-C."""
MOST = 25
"""The options that `--help` shows; where a command has more, the rarer ones wait for `--help-all`."""


class CommandGroup(TyperGroup):
    """Commands under one name. What its help is asked by stands in one order: typer has a set."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        return sorted(super().get_help_option_names(ctx), key=len)


app = typer.Typer(
    name="blendfilter",
    help="Retrieval-augmented question answering that blends queries and filters knowledge, evaluated honestly.",
    epilog="Exit codes: 0 done; 1 the work failed, wholly or for some questions, or too many replies were bad; "
    "2 what was asked is wrong; 3 a budget is spent, and the same command with a higher one goes on.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=CommandGroup,
    context_settings={
        "help_option_names": ["-h", "--help", "--help-all"],
        "max_content_width": 110,
    },
)


class State:
    """What one command leaves for `main`, and for its `--help`."""

    debug = False
    help_all = False
    goes_on = False
    """Whether the command, stopped and given again, goes on where it was."""


def _version(value: bool) -> None:
    if value:
        from blendfilter import __version__

        show(f"blendfilter {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_version
        ),
    ] = False,
) -> None:
    State.debug = debug


class PanelCommand(TyperCommand):
    """A command whose `--help` shows its options in panels, as plain text; every switch can be switched off."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        for param in self.params:
            if (
                isinstance(param, TyperOption)
                and param.is_bool_flag
                and not (param.secondary_opts or param.is_eager)
            ):
                name = max(param.opts, key=len).removeprefix("--")
                param.secondary_opts = [
                    f"--{name[3:]}" if name.startswith("no-") else f"--no-{name}"
                ]

    def get_help_option_names(self, ctx: Any) -> list[str]:
        return sorted(super().get_help_option_names(ctx), key=len)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        settle(ctx)
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {
            name: [] for name in ("Arguments", *PANELS, "Options")
        }
        params: list[Any] = [*map(copy, self.get_params(ctx))]
        few = sum(param.param_type_name == "option" for param in params) <= MOST
        for param in sorted(params, key=lambda param: param.hidden):  # the common ones first
            argument = param.param_type_name == "argument"
            param.hidden &= not (few or State.help_all)
            if param.default is False and not State.help_all:  # what undoes a switch of a file
                param.secondary_opts = []
            if (record := param.get_help_record(ctx)) is not None:
                panels["Arguments" if argument else param.rich_help_panel or "Options"].append(
                    record
                )
        for name, records in panels.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def _help_all(ctx: typer.Context, value: bool) -> None:
    if value:
        State.help_all = True
        try:
            show(ctx.get_help())
        finally:
            State.help_all = False
        raise typer.Exit


Config = Annotated[
    Path | None,
    typer.Option(
        "--config", metavar="FILE.toml", help="Options from a TOML file, by their long names (api-base = \"…\"); those "
        "of the command line go before (--no-replay before replay = true). Paths in it are from the folder you are in.",
        is_eager=True, callback=from_file,
    ),
]  # fmt: skip
HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", help="Show the rarer options too.", is_eager=True, callback=_help_all
    ),
]


def command(
    name: str | None = None, *, group: typer.Typer | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command, or as one of a `group`; its parameters that are groups of options
    (dataclasses) are spread.

    Every command takes `--config` too; `--help-all` is `--help` where there are no rare options.
    """
    return lambda function: (group or app).command(name, cls=PanelCommand)(spread(function))


def command_group(name: str, help: str) -> typer.Typer:
    """A group of commands: `blendfilter NAME COMMAND`."""
    group = typer.Typer(
        help=help,
        cls=CommandGroup,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.add_typer(group, name=name, no_args_is_help=True)
    return group


def spread(function: Callable[..., None]) -> Callable[..., None]:
    """`function`, whose parameters that are dataclasses are taken field by field.

    >>> from blendfilter.cli.options import SpendingOptions
    >>> @spread
    ... def limited(limits: SpendingOptions) -> None: ...
    >>> list(inspect.signature(limited).parameters)
    ['max_calls', 'max_tokens', 'max_cost', 'config']
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    keyword = inspect.Parameter.KEYWORD_ONLY
    taken: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in groups:
            taken.append(parameter.replace(annotation=hints[parameter.name], kind=keyword))
            continue
        group = groups[parameter.name]
        of_group = get_type_hints(group, include_extras=True)
        for field in fields(group):
            hint, declared = of_group[field.name], field.metadata.get("option")
            annotation = hint if declared is None else Annotated[hint, declared]
            taken.append(
                inspect.Parameter(field.name, keyword, default=field.default, annotation=annotation)
            )
    taken.append(inspect.Parameter("config", keyword, default=None, annotation=Config))
    if len(taken) > MOST:
        taken.append(inspect.Parameter("help_all", keyword, default=False, annotation=HelpAll))

    @functools.wraps(function)
    def spreading(**given: Any) -> None:
        given = {
            name: _at_home(value)
            for name, value in given.items()
            if name not in ("config", "help_all")
        }
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    spreading.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    spreading.__annotations__ = {parameter.name: parameter.annotation for parameter in taken}
    return spreading


def _at_home(value: Any) -> Any:
    """An option's value; a path in it may begin with `~`, which no shell replaces in `--run=~/runs` or in a file."""
    if isinstance(value, list | tuple):
        return type(value)(map(_at_home, value))
    if not isinstance(value, Path):
        return value
    from blendfilter.files import path_of

    return path_of(value)


def main() -> None:
    """The entry point: errors of ours are one line and an exit code, never a traceback."""
    try:
        with guarded(), on_the_command_line():
            _main()
    finally:
        sys.excepthook = _traceback  # typer has put its own there


def _main() -> None:
    _quiet_libraries()
    State.goes_on = False
    try:
        # Without its standalone mode typer hands an exit code back, it does not raise it.
        code = app(sys.argv[1:] or ["--help"], prog_name="blendfilter", standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        name = context.command_path if context else "blendfilter"
        _fail(f"{error.format_message().rstrip('.')} ({name} --help shows what it takes)", 2)
    except (KeyboardInterrupt, typer.Abort):
        what = (
            "the same command goes on where it was" if State.goes_on else "nothing of it was kept"
        )
        _fail(f"stopped; {what}", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone
        sys.exit(1)
    except Exception as error:
        if State.debug:
            raise
        if isinstance(error, BlendFilterError):
            _fail(str(error), error.exit_code)
        if isinstance(error, OSError):  # a full disk, a folder without permission to write
            _fail(f"{error.filename or 'the system says'}: {error.strerror or error}", 1)
        # an error that no code foresaw: name the files and folders that the command was given
        given = [word for word in sys.argv[1:] if not word.startswith("-") and os.path.exists(word)]
        about = f"{', '.join(given)}: " if given else ""
        what = f"{type(error).__name__}: {str(error)[:300]}"
        _fail(
            f"{about}this should not have happened ({what}): a file may be damaged; blendfilter --debug … says more",
            1,
        )


def _traceback(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """What Python prints of an error that ends it; its message may quote anything."""
    sys.stderr.write(visible("".join(traceback.format_exception(kind, error, trace))))


def _fail(line: str, code: int) -> NoReturn:
    say(" ".join(line.split()))
    sys.exit(code)


def _quiet_libraries() -> None:
    """Warnings as one line each; DSPy's and the clients' chatter off."""
    import logging
    import warnings

    warnings.showwarning = lambda message, *_args, **_kwargs: say(str(message))
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    logging.basicConfig(format="blendfilter: %(message)s", level=logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.ERROR)
