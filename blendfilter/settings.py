"""Settings, each declared once: a field of a pydantic model, with its type, its default and a sentence about it.

The command line makes an option of every field (`blendfilter.cli.app`), which `--config` and `--like` take, too.
`Connection` is shared with `blendfilter.connect`, whose arguments have the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blendfilter.errors import BadArgument

T = TypeVar("T")


@dataclass
class Option:
    """How a field stands on the command line, where its name and its class do not say it."""

    names: str = ""
    """Of the option, with spaces between; the field's name with dashes by default."""
    panel: str = ""
    """Where `--help` shows it, if not with the others of its class."""
    help: str = ""
    """Its sentence, where that is made of others; else the one below the field."""
    metavar: str = ""
    """The placeholder of its value."""
    rare: bool = False
    """Whether `--help` leaves it to `--help-all`."""
    argument: bool = False
    """Whether it has a place instead of a name."""
    goes_with: str = ""
    """The field without which it means nothing."""
    of: tuple[str, ...] = ()
    """The methods, engines or measures that take it, if not all do."""
    callback: Callable[..., Any] | None = None
    """What typer calls with its value before it reads the other options."""

    @property
    def name(self) -> str:
        """The first of its names."""
        return self.names.split()[0]


Rare = Annotated[T, Option(rare=True)]
Argument = Annotated[T, Option(argument=True)]


class Settings(BaseModel):
    """Base of a group of settings; `about` is what holds for the fields that the class declares."""

    model_config = ConfigDict(
        use_attribute_docstrings=True,
        defer_build=True,  # --help makes none of them
        frozen=True,
        extra="forbid",
        arbitrary_types_allowed=True,
    )
    about: ClassVar[Option] = Option()

    def __init_subclass__(
        cls, panel: str = "", goes_with: str = "", of: tuple[str, ...] = (), **more: Any
    ) -> None:
        super().__init_subclass__(**more)
        cls.about = Option(panel=panel, goes_with=goes_with, of=of)

    if not TYPE_CHECKING:  # type checkers know the fields as arguments

        def __init__(self, **values: Any) -> None:
            """Raises: BadArgument for the first value that is wrong."""
            try:
                super().__init__(**values)
            except ValidationError as error:
                first = error.errors(include_url=False)[0]
                name, value, why = first["loc"][0], first["input"], first["msg"]
                raise BadArgument(
                    f"{name} is {value!r:.80}: {why[:1].lower()}{why[1:]}"
                ) from None

    @classmethod
    def declared(cls) -> dict[str, Option]:
        """How each field stands on the command line: the class's own first, then its bases' from left to right."""
        owners: dict[str, Any] = {}
        for owner in cls.__mro__:
            for name in vars(owner).get("__annotations__", ()):
                owners.setdefault(name, owner)
        found = {}
        for name, owner in owners.items():
            if (field := cls.model_fields.get(name)) is not None:
                found[name] = Option(
                    f"--{name.replace('_', '-')}", help=field.description or ""
                )
                for mark in (owner.about, *field.metadata):
                    if isinstance(mark, Option):
                        vars(found[name]).update(
                            {name: value for name, value in vars(mark).items() if value}
                        )
        return found

    def given(self, *of: str | type[Settings]) -> dict[str, Any]:
        """The fields that were given, by name: those of the groups and names in `of`, or all. No switch that is off."""
        names = [
            name for one in of for name in ([one] if isinstance(one, str) else one.declared())
        ]
        found = {}
        for name in self.declared():
            value, default = getattr(self, name), type(self).model_fields[name].default
            off = value in (None, []) or (value is False and default is False)
            if name in self.model_fields_set and (name in names or not of) and not off:
                found[name] = value
        return found

    def given_options(self, *of: str | type[Settings]) -> list[str]:
        """The same, as options of the command line."""
        return [*map(self.option, self.given(*of))]

    @classmethod
    def option(cls, name: str) -> str:
        """The option of a field: `--max-calls`."""
        return cls.declared()[name].name

    def check_given(self, *chosen: str) -> None:
        """Raise `BadArgument` for a field without the one that it goes with, or that nothing `chosen` takes."""
        declared = self.declared()
        for name in self.given():
            how = declared[name]
            if how.goes_with and not self.given(how.goes_with):
                needed = declared[how.goes_with].name
                raise BadArgument(f"{how.name} goes with {needed}: add that, or leave it out")
            if chosen and how.of and not {*how.of} & {*chosen}:
                takers = " and ".join(how.of)
                raise BadArgument(f"{how.name} is for {takers}: take that, or leave it out")

    def but(self, **changes: Any) -> Self:
        """A copy with other values. Raises: BadArgument."""
        given = {name: getattr(self, name) for name in self.model_fields_set}
        return type(self)(**{**given, **changes})


class CallLimits(Settings, panel="Limits"):
    """How long and how often a model is called."""

    timeout: Rare[float | None] = None
    """Seconds that one attempt at a call may take (120)."""
    attempts: Rare[int | None] = None
    """Attempts that a call has, where its faults may pass (6)."""
    deadline: Rare[float | None] = None
    """Seconds that all attempts at a call may take (600; a local model: as long as it takes)."""
    requests_per_minute: Annotated[int | None, Option("--rpm", rare=True)] = None
    """Requests a minute that the server is sent at the most."""
    tokens_per_minute: Annotated[int | None, Option("--tpm", rare=True)] = None
    """Tokens a minute, of prompts and replies."""


class Weights(Settings, panel="Model"):
    """Which weights answer, and where."""

    api_base: list[str] | None = None
    """An OpenAI-compatible server, http://localhost:8000/v1; given several times, all serve the same model and the
    calls are shared among them."""
    label: Rare[str] = ""
    """Tells two servers apart that serve other weights under one name."""
    context: Rare[int | None] = None
    """A local model's tokens of prompt and reply together (what it knows, up to 8192)."""
    threads: Rare[int | None] = None
    """A local model's processor threads (1)."""


class Asking(Settings, panel="Model"):
    """How a model is asked."""

    endpoint: Literal["chat", "completions"] = "chat"
    """chat, or completions for base models."""
    thinking: Rare[bool | None] = None
    """Ask a model that thinks by default to think, or not to."""
    reasoning: Rare[str | None] = None
    """Effort of a reasoning model: low, medium or high."""


class Connection(Weights, Asking, CallLimits):
    """How a model is connected."""


class Decoding(Settings, panel="Model"):
    """How replies are drawn."""

    temperature: float = Field(0.0, ge=0, le=2)
    """0 is greedy, as in the papers."""
    top_p: Rare[float | None] = Field(None, ge=0, le=1)
    """Nucleus sampling."""
    json_schema: Rare[bool | None] = None
    """Hold the ids to a JSON schema. Without it: where the provider is known to take one."""
