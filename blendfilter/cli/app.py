"""The command line as one object: how a command takes its options, how `--help` shows them, and how a command ends."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from types import TracebackType
from typing import Annotated, Any, NoReturn, get_type_hints

import typer
from typer.core import TyperCommand

from blendfilter.cli.console import say
from blendfilter.errors import BlendFilterError
from blendfilter.terminal import guarded
from blendfilter.text import visible

INTERRUPTED = 130
"""What shells and typer call the end by Ctrl-C."""
PANELS = {
    "Data": "task data limit corpus index retrieved allow_host silver valid_data train valid negatives questions "
    "allow_empty_answers leave_out_compiled queries chunk",
    "Method": "method k without filter filter_n filter_by filter_model rule rules filter_union hops style iterations "
    "samples rewrite prompts program wording mode",
    "Model": "lm api_base endpoint temperature top_p thinking reasoning json_schema label timeout attempts deadline "
    "rpm tpm context threads prices teacher_lm",
    "Limits": "max_calls max_tokens max_cost max_retries concurrency",
    "Output": "run out overwrite html json show_trace full",
}
"""The panels of `--help` and the options in them; the others of a command stand in the last, Options."""

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


class State:
    """What `main` must know after a command failed."""

    debug = False
    goes_on = False
    """Whether the command, stopped and given again, goes on where it was."""


@app.callback()
def _options(debug: Annotated[bool, typer.Option(help="Show the traceback of an error.")] = False) -> None:
    State.debug = debug


class PanelCommand(TyperCommand):
    """A command whose `--help` shows its options in panels, as plain text."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *PANELS, "Options")}
        panel_of = {option: panel for panel, options in PANELS.items() for option in options.split()}
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is not None:
                argument = param.param_type_name == "argument"
                panels["Arguments" if argument else panel_of.get(param.name or "", "Options")].append(record)
        for name, records in panels.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def command(name: str | None = None) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a function as a command; its parameters that are groups of options (dataclasses) are spread."""
    return lambda function: app.command(name, cls=PanelCommand)(spread(function))


def spread(function: Callable[..., None]) -> Callable[..., None]:
    """`function`, whose parameters that are dataclasses are taken field by field.

    >>> from blendfilter.cli.options import SpendingOptions
    >>> @spread
    ... def limited(limits: SpendingOptions) -> None: ...
    >>> list(inspect.signature(limited).parameters)
    ['max_calls', 'max_tokens', 'max_cost']
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
            taken.append(inspect.Parameter(field.name, keyword, default=field.default, annotation=annotation))

    @functools.wraps(function)
    def spreading(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        function(**given)

    spreading.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
    spreading.__annotations__ = {parameter.name: parameter.annotation for parameter in taken}
    return spreading


def main() -> None:
    """The entry point: errors of ours are one line and an exit code, never a traceback."""
    try:
        with guarded():
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
        what = "the same command goes on where it was" if State.goes_on else "nothing of it was kept"
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
            f"{about}this should not have happened ({what}): a file may be damaged; blendfilter --debug … says more", 1
        )


def _traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
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
    logging.getLogger("dspy.clients.lm").setLevel(logging.ERROR)  # we count and show cut replies ourselves
