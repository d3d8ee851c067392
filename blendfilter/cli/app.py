"""The command line as one object: how a command takes its options, how `--help` shows them, and how a command ends."""

from __future__ import annotations

import functools
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from annotated_types import Ge, Le
from typer.core import TyperCommand, TyperGroup

from blendfilter.cli.console import say, show
from blendfilter.cli.given import from_file, is_given, settle
from blendfilter.cli.options import PANELS
from blendfilter.errors import BlendFilterError
from blendfilter.settings import Option, Settings
from blendfilter.terminal import guarded
from blendfilter.text import visible

INTERRUPTED = 130
"""What shells and typer call the end by Ctrl-C."""
MOST = 25
"""The options that `--help` shows; where a command has more, the rarer ones wait for `--help-all`."""

KEYWORD = inspect.Parameter.KEYWORD_ONLY
_PARAMETER = re.compile(
    r"(?<![\w`'.])(?<!\w\()([a-z][a-z_]*)=('[^']*'|[^\s,;()'\"]*[\w\]…]|)(?!\()"
)


COMMANDS = {
    "ask": ("ask", "Answer one question."),
    "index": ("indexes", "Make an index of a corpus, or update one."),
    "search": ("indexes", "Search an index."),
    "serve": ("indexes", "Serve an index over HTTP."),
    "eval": ("runs", "Evaluate a method on a question set."),
    "merge": ("runs", "Make one run of the shards of one."),
    "ps": ("runs", "List the runs in progress."),
    "tune": ("runs", "Change a run while it runs."),
    "report": ("runs", "Show a run, and write its page."),
    "compare": ("runs", "Compare runs with the first one."),
    "rescore": ("runs", "Score a finished run by other metrics."),
    "reproduce": ("reproduce", "Reproduce a table or figure of a paper."),
    "silver": ("silver", "Choose the sentences that hold the answers, by an oracle."),
    "compile": ("compile", "Compile a filter or a method with a DSPy optimiser."),
    "train": ("train", "Fine-tune filters, refiners and generators."),
    "trim": ("trim", "Trim an index by a model's judgements."),
    "doctor": ("doctor", "Examine a model: does it do what the pipeline asks?"),
}
"""The commands in the order of `--help`, each with its module and a line about it: no help imports all of them."""
_made: dict[str, typer.Typer] = {}
"""The commands whose modules were imported."""


class LazyCommands(Mapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        return _imported(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@functools.cache
def _imported(name: str) -> Any:
    import_module(f"blendfilter.cli.{COMMANDS[name][0]}")
    return typer.main.get_command(_made[name])


class CommandGroup(TyperGroup):
    """Commands under one name. What its help is asked by stands in one order: typer has a set."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        return sorted(super().get_help_option_names(ctx), key=len)


class RootGroup(CommandGroup):
    """All commands."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.commands = LazyCommands()  # type: ignore[assignment]

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


PLAIN: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}
"""How typer makes all of them."""
app = typer.Typer(
    name="blendfilter",
    help="Retrieval-augmented question answering that blends queries and filters knowledge, evaluated honestly.",
    epilog="Exit codes: 0 done; 1 the work failed, wholly or for some questions, too many replies were bad, or a score "
    "or a difference is not as asked; 2 what was asked is wrong; 3 a budget is spent, and the same command with a "
    "higher one goes on.",
    cls=RootGroup,
    context_settings={
        "help_option_names": ["-h", "--help", "--help-all"],
        "max_content_width": 110,
    },
    **PLAIN,
)


class State:
    """What one command leaves for `main`, and for its `--help`."""

    debug = False
    help_all = False
    goes_on = False
    """Whether the command, stopped and given again, goes on where it was."""
    params: Sequence[Any] = ()
    """The options and arguments of the command."""


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
    """A command whose `--help` shows its options in panels, as plain text."""

    def get_help_option_names(self, ctx: Any) -> list[str]:
        return sorted(super().get_help_option_names(ctx), key=len)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        State.params = self.params
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
        "--config",
        metavar="FILE.toml",
        help='Options from a TOML file, by their long names (api-base = "…"); those '
        "of the command line go before (--no-replay before replay = true). Paths in it are from the folder you are in.",
        is_eager=True,
        callback=from_file,
    ),
]
HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", help="Show the rarer options too.", is_eager=True, callback=_help_all
    ),
]


def command(
    name: str | None = None, *, group: typer.Typer | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command, or as one of a `group`: its parameter `options` are `Settings`.

    Every command takes `--config` too; `--help-all` is `--help` where there are no rare options.
    """

    def registered(function: Callable[..., None]) -> Callable[..., None]:
        called = name or function.__name__
        place = group or _made.setdefault(called, typer.Typer(**PLAIN))
        return place.command(called, cls=PanelCommand)(_spread(function))

    return registered


def command_group(name: str, help: str) -> typer.Typer:
    """A group of commands: `blendfilter NAME COMMAND`."""
    _made[name] = typer.Typer(
        name=name, help=help, cls=CommandGroup, no_args_is_help=True, **PLAIN
    )
    return _made[name]


def _spread(function: Callable[..., None]) -> Callable[..., None]:
    """`function(options)`, or `function(ctx, options)`, as typer reads it: with a parameter for each setting."""
    hints = get_type_hints(function)
    settings: type[Settings] = hints["options"]
    taken = [_parameter(name, how, settings) for name, how in settings.declared().items()]
    taken.append(inspect.Parameter("config", KEYWORD, default=None, annotation=Config))
    if len(taken) > MOST:
        taken.append(inspect.Parameter("help_all", KEYWORD, default=False, annotation=HelpAll))
    taken.append(inspect.Parameter("ctx", KEYWORD, annotation=typer.Context))

    @functools.wraps(function)
    def spreading(ctx: typer.Context, **values: Any) -> None:
        names = [name for name in settings.model_fields if is_given(ctx, name)]
        options = settings(**{name: _at_home(values[name]) for name in names})
        options.check_given()
        function(*([ctx] if "ctx" in hints else []), options)

    spreading.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    spreading.__annotations__ = {parameter.name: parameter.annotation for parameter in taken}
    return spreading


def _parameter(name: str, how: Option, settings: type[Settings]) -> inspect.Parameter:
    """A setting as typer reads it."""
    field = settings.model_fields[name]
    least = next((mark.ge for mark in field.metadata if isinstance(mark, Ge)), None)
    most = next((mark.le for mark in field.metadata if isinstance(mark, Le)), None)
    about: dict[str, Any] = {
        "help": " ".join(how.help.split()),
        "metavar": how.metavar or None,
        "min": least,
        "max": most,
        "callback": how.callback,
        "is_eager": how.callback is not None,
    }
    if how.argument:
        declared = typer.Argument(**about)
    else:
        names = how.names.split()
        if field.annotation in (bool, bool | None):  # every switch can be switched off
            plain = names[0].removeprefix("--")
            off = plain[3:] if plain.startswith("no-") else f"no-{plain}"
            names = [f"{names[0]}/--{off}"]
        declared = typer.Option(*names, rich_help_panel=how.panel, hidden=how.rare, **about)
    default = inspect.Parameter.empty if field.is_required() else field.default
    annotation = Annotated[field.annotation, declared]  # type: ignore[name-defined]
    return inspect.Parameter(name, KEYWORD, default=default, annotation=annotation)


def _at_home(value: Any) -> Any:
    """An option's value; a path in it may begin with `~`, which no shell replaces in `--run=~/runs` or in a file."""
    if isinstance(value, list):
        return [_at_home(item) for item in value]
    if not isinstance(value, Path):
        return value
    from blendfilter.files import path_of

    return path_of(value)


def in_options(message: str) -> str:
    """A message that names parameters (`api_base=URL`), in the command's options (`--api-base URL`)."""
    options = {param.name: param.opts[0] for param in State.params}
    for name in [*options]:  # a filter calls `model` what is --filter-model here
        options.setdefault(name.removeprefix("filter_"), options[name])

    def option(found: re.Match[str]) -> str:
        name, value = found[1], found[2].strip("'")
        if name not in options:
            return found[0]
        if value == "False":
            return f"--no-{options[name].removeprefix('--')}"
        return f"{options[name]} {value}" if value not in ("", "True") else options[name]

    return _PARAMETER.sub(option, message)


def main() -> None:
    """The entry point: errors of ours are one line and an exit code, never a traceback."""
    try:
        with guarded():
            _main()
    finally:
        sys.excepthook = _traceback  # typer has put its own there


def _main() -> None:
    _quiet_libraries()
    State.goes_on, State.params = False, ()
    try:
        # Without its standalone mode typer hands an exit code back, it does not raise it.
        code = app(sys.argv[1:] or ["--help"], prog_name="blendfilter", standalone_mode=False)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        name = context.command_path if context else "blendfilter"
        words = error.format_message().rstrip(".").replace("Value error, ", "")  # pydantic's
        _fail(f"{words} ({name} --help shows what it takes)", 2)
    except (KeyboardInterrupt, typer.Abort):
        what = (
            "the same command goes on where it was"
            if State.goes_on
            else "nothing of it was kept"
        )
        _fail(f"stopped; {what}", INTERRUPTED)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our output has gone
        sys.exit(1)
    except Exception as error:
        if State.debug:
            raise
        if isinstance(error, BlendFilterError):
            before, quoted, after = str(error).partition(error.quoted or "\0")
            _fail(f"{in_options(before)}{quoted}{in_options(after)}", error.exit_code)
        if isinstance(error, OSError):  # a full disk, a folder without permission to write
            _fail(f"{error.filename or 'the system says'}: {error.strerror or error}", 1)
        # an error that no code foresaw: name the files and folders that the command was given
        given = [
            word for word in sys.argv[1:] if not word.startswith("-") and os.path.exists(word)
        ]
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

    class Notices(logging.Formatter):
        def format(self, record: logging.LogRecord) -> str:
            return in_options(super().format(record))

    warnings.showwarning = lambda message, *_args, **_kwargs: say(in_options(str(message)))
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    notices = logging.StreamHandler()
    notices.setFormatter(Notices("blendfilter: %(message)s"))
    logging.basicConfig(handlers=[notices], level=logging.WARNING)
    logging.getLogger("httpx").setLevel(logging.ERROR)
