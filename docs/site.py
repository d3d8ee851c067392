"""What MkDocs takes from the code: the command line's reference, and a page of the public names of each part.

A hook of mkdocs.yml, and an extension of its API reference. The pages exist in the site alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import griffe
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import blendfilter as bf

PARTS = {
    "methods": ("Methods", ("modules",)),
    "filters": ("Filters and oracles", ("filters", "oracles", "trimming")),
    "retrieval": ("Retrieval", ("retrieval",)),
    "evaluation": ("Evaluation and reports", ("evaluation", "reproduce", "report", "tasks", "journal")),
    "models": ("Models, budgets, scores", ("lm",)),
    "programs": ("Prompts and programs", ("prompting", "compiling", "training")),
    "records": ("Records and errors", ("records", "errors")),
}
"""A page of the API reference: its title, and the rooms of the package whose public names it shows."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    pages = {"cli.md": "\n".join(command_line())}
    rooms = {room: page for page, (_, rooms) in PARTS.items() for room in rooms}
    names: dict[str, list[str]] = {page: [] for page in PARTS}
    for name in bf.__all__:
        home = bf._HOME[name]
        names[rooms[home.split(".")[1]]].append(f"::: {home}.{name}\n")
    for page, (title, _) in PARTS.items():
        head = f"# {title}\n\nEach is imported from the top: `import blendfilter as bf`.\n"
        pages[f"api/{page}.md"] = "\n".join([head, *names[page]])
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_content(html: str, page: Page, **_: Any) -> str:
    """Make links of notebooks to other pages work: MkDocs follows those of Markdown alone."""
    if not page.file.src_uri.endswith(".ipynb"):
        return html
    return re.sub(r'(href="(?!\w+:)[^"#]*)\.(?:md|ipynb)(?=["#])', r"\1.html", html)


def command_line() -> Iterator[str]:
    """Every command with its arguments and options, rare ones too."""
    import typer

    from blendfilter.cli import app

    yield "# Command line\n"
    yield "Options that several commands share mean the same in each. `--config FILE.toml` holds any of them.\n"
    yield from _commands(typer.main.get_command(app), "blendfilter")


def _commands(group: Any, prefix: str) -> Iterator[str]:
    """Each command of a group: what it does, an example, a row an option; of a group in it, likewise."""
    import click

    context = click.Context(group)
    for name in group.list_commands(context):
        command, title = group.get_command(context, name), f"{prefix} {name}"
        first, _, rest = (command.help or "").partition("\n\n")
        yield f"## {title}\n\n{_words(first)}\n"
        if hasattr(command, "list_commands"):
            yield from _commands(command, title)
            continue
        if example := re.search(r"Example:\s+(.+)", rest, re.DOTALL):
            yield f"```bash\n{_words(example[1])}\n```\n"
        yield "| option | what it does |\n| --- | --- |"
        for parameter in command.params:
            if parameter.name not in ("help", "help_all"):
                yield f"| {_named(parameter)} | {_cell(getattr(parameter, 'help', None) or '')} |"
        yield ""


def _named(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{(parameter.metavar or parameter.name).upper()}`"
    return ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])


def _words(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _words(text).replace("|", "\\|").replace("<", "&lt;")


class Fences(griffe.Extension):
    """Examples in docstrings as blocks of code: to Markdown, `>>>` is a quotation in a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """The docstring with its examples in fences, and literal blocks that reStructuredText begins with `::`.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2\\n\\nSo it does.")
    'Adds.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n\\nSo it does.'
    """
    paragraphs = re.split(r"\n\s*\n", docstring)
    for at, paragraph in enumerate(paragraphs):
        if paragraph.lstrip().startswith(">>> "):
            paragraphs[at] = f"```pycon\n{paragraph}\n```"
    return re.sub(r"::(?=\n|$)", ":", "\n\n".join(paragraphs))
