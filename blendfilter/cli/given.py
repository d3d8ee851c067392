"""Options that do not stand on the command line: of a TOML file (`--config`), or of an earlier run (`--like`).

Either becomes the command's defaults, so that the command line goes before the file, and the file before the run. Paths
mean what they mean on the command line: from the folder that the command is run in, wherever the file lies.

A file of options is the user's own. A run may be anybody's, so only settings are taken from it: no address, which would
be sent the user's key, and no code (`package:Class`), which would be run. Those must be repeated.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperOption

from blendfilter.errors import BadArgument, BadData, MissingFile, UnknownName, guess

SETTINGS = ("Data", "Method", "Model")
"""The panels whose options are settings of a run."""
NO_SETTINGS = frozenset({"api_base", "filter_api_base", "allow_hosts", "threads"})
"""Options in them that are none: where a model or an index is reached, and by how many processors."""
SOURCES = ("corpus", "index", "retrieved")
"""Options of which one excludes the others: where it is named, those of the file and the run are left out."""
NOTE = "options"
"""What `run.json` calls them among its notes."""
CODE = ("method", "filter")
"""Options that may name code of the user's own, as `package:Class`."""
_NOT_TAKEN = f"{__name__}.not_taken"


def from_file(ctx: typer.Context, path: Path | None) -> Path | None:
    """The callback of `--config`."""
    if path is not None:
        ctx.default_map = _before(_read(ctx, path), ctx.default_map or {})
    return path


def from_run(ctx: typer.Context, run: Path | None) -> Path | None:
    """The callback of `--like`."""
    if run is not None:
        from blendfilter.evaluation.run_folder import RUN, read_json
        from blendfilter.files import path_of

        run = path_of(run)
        options = read_json(run / RUN).get("notes", {}).get(NOTE)
        if not isinstance(options, dict):
            raise BadData(
                f"{run / RUN} names no options: only a run that blendfilter eval made can be given back"
            )
        taken, not_taken = dict[str, Any](), dict[str, str]()
        params = {param.name: param for param in ctx.command.params}
        for name, value in _checked(ctx, options, str(run / RUN)).items():
            words = [*map(str, value)] if isinstance(value, list) else [str(value)]
            if why := _why_not_taken(params[name], words):
                not_taken[name] = (
                    f"{run / RUN} names {_option(params[name])} {' '.join(words):.100}: {why}"
                )
            else:
                taken[name] = value
        ctx.meta[_NOT_TAKEN] = not_taken
        ctx.default_map = _before(ctx.default_map or {}, taken)
    return run


def _why_not_taken(param: Any, words: list[str]) -> str:
    """Why an option is not taken from somebody's run; empty where it is."""
    if any("://" in word for word in words):
        return "an address"
    if param.name in CODE and any(":" in word for word in words):
        return "code"
    if param.name == "prices":
        return "what calls are said to cost, which --max-cost goes by"
    return "" if _is_setting(param) else "no setting of a run"


def settle(ctx: typer.Context) -> None:
    """Decide what depends on the whole command line. Raises: BadArgument for what a run must not decide."""
    _take_named_source(ctx)
    for param in ctx.command.params:
        refusal = ctx.meta.get(_NOT_TAKEN, {}).get(param.name)
        names = SOURCES if param.name in SOURCES else (param.name,)
        if refusal is not None and not any(is_given(ctx, name) for name in names):
            raise BadArgument(
                f"{refusal}, which is not taken from a run; repeat {_option(param)} on the command line if you trust "
                "it, or give another"
            )


def is_given(ctx: typer.Context, name: str) -> bool:
    """Whether an option stands on the command line, in a file or in a run."""
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _option(param: Any) -> str:
    return str(max(param.opts, key=len))


def _take_named_source(ctx: typer.Context) -> None:
    """Leave out the sources of passages of the file and the run where the command line names one."""
    options = {
        param.name: param for param in ctx.command.params if isinstance(param, TyperOption)
    }
    if "corpus" not in options or options["corpus"].multiple:
        return  # `reproduce` has a source for each task
    origins = {
        name: origin
        for name in SOURCES
        if (origin := ctx.get_parameter_source(name)) is not None
    }
    named = any(origin.name == "COMMANDLINE" for origin in origins.values())
    for name, origin in origins.items():
        if named and origin.name == "DEFAULT_MAP":
            ctx.params[name] = None
            ctx.set_parameter_source(name, type(origin).DEFAULT)


def _before(file: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file and of a run together; the file's go before."""
    replaced = SOURCES if any(name in file for name in SOURCES) else ()
    return {name: value for name, value in run.items() if name not in replaced} | dict(file)


def settings_given(ctx: typer.Context) -> dict[str, Any]:
    """The settings that the command was given, as `--like` gives them back; addresses lose their logins."""
    from blendfilter.http import without_login
    from blendfilter.secrets import hidden

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, str | Path):
            return hidden(without_login(str(value)) if "://" in str(value) else str(value))
        return value

    return {
        _option(param).lstrip("-"): plain(ctx.params[param.name])
        for param in ctx.command.params
        if _is_setting(param) and is_given(ctx, param.name)
    }


def _is_setting(param: Any) -> bool:
    """Whether a run is made with it: where a model is reached, and what a run may cost, are none."""
    panel = getattr(param, "rich_help_panel", None)
    return param.name not in NO_SETTINGS and (
        panel in SETTINGS or param.param_type_name == "argument"
    )


def _read(ctx: typer.Context, path: Path) -> dict[str, Any]:
    from blendfilter.files import path_of

    try:
        return _checked(
            ctx, tomllib.loads(path_of(path).read_text(encoding="utf-8")), str(path)
        )
    except FileNotFoundError as error:
        raise MissingFile(
            f'no file {path}: --config takes a TOML file of options, such as lm = "offline"'
        ) from error
    except (OSError, ValueError) as error:
        raise BadData(f"{path}: cannot be read as TOML ({error})") from error


def _checked(ctx: typer.Context, values: dict[str, Any], where: str) -> dict[str, Any]:
    """`values` by parameter, each as the command line would read it. Raises `UnknownName` and `BadData`.

    They are named as options without dashes, or as arguments.
    """
    read = dict[str, Any]()
    params = {
        spelled.lstrip("-"): param
        for param in ctx.command.params
        if not (isinstance(param, TyperOption) and param.is_eager)
        for spelled in param.opts
    }
    for key, value in values.items():
        name = key.replace("_", "-") if key not in params else key
        if name not in params:
            near = guess(name, params)
            raise UnknownName(
                f"{where}: {ctx.command_path} has no option '{key}'.{near} Its --help lists them"
            )
        param = params[name]
        is_switch = getattr(param, "is_flag", False)
        takes_several = param.nargs != 1 or getattr(param, "multiple", False)
        items = value if isinstance(value, list) and takes_several else [value]
        kinds = {bool} if is_switch else {str, int, float}
        if not {*map(type, items)} <= kinds:
            wanted = "a text or a number" + ", or a list of them" * takes_several
            wanted = "true or false" if is_switch else wanted
            raise BadData(f"{where}: {key} = {value!r:.60}: expected {wanted}")
        words = value if is_switch else [*map(str, items)] if takes_several else str(value)
        try:
            param.process_value(ctx, words)
        except typer.BadParameter as error:
            raise BadData(
                f"{where}: {key} = {value!r:.60}: {error.message.rstrip('.')}"
            ) from error
        read[param.name] = words
    return read
