"""What is known of providers and of model families: address and key, what is accepted on the wire, how one thinks.

Families are known by name; what a name does not tell, the server's own refusals teach (`OpenAIEngine.refused`). Keys
are read from the environment here, and nowhere else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from blendfilter import http
from blendfilter.dspy_surface import key_variables, known_providers, lm15, more_providers
from blendfilter.errors import BadArgument, NoKey, UnknownName, guess
from blendfilter.secrets import Key, checked

THINKING_TOKENS = 4096
"""What is added to a reply's cap where a model thinks, unless its family wants more."""
MOST_STOPS = 4
"""Stop strings that are sent: OpenAI takes no more, and a reply is cut on this end anyway."""
SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "frequency_penalty",
    "presence_penalty",
    "logprobs",
)
"""What a family refuses that samples as it likes."""
EFFORTS = ("off", "minimal", "low", "medium", "high")
"""Levels of thinking; `off` is `thinking=False`."""


@dataclass(frozen=True, slots=True)
class Profile:
    """What one model family accepts. The default accepts everything and does not think.

    Attributes:
        accepts_stop: `stop` may be sent, while it does not think: a stop string inside the thinking would end the call
            before the reply. The reply is cut at the stop strings on this end in any case.
        accepts_temperature: the sampling settings (temperature, top_p, penalties, log-probabilities) may be sent.
        max_tokens_param: the name of the cap on the reply's tokens.
        thinks: thinks before it replies unless that is switched off.
        thinking_tokens: added to the cap where it thinks, since thinking counts against it.
        switch: how thinking is steered: `reasoning_effort`, or a flag of the chat template
            (`enable_thinking`, `thinking`, `thinking_budget`, which is 0 or left alone) in `chat_template_kwargs`; None
            where it cannot be, or no switch is known.
        off: the word of `reasoning_effort` that comes nearest to no thinking.
        can_stop_thinking: the switch really turns it off (else `off` only makes it short).
        json_schema: the server holds a reply to a JSON schema (`holds_schema`, or the user's word); None: unknown.
        effort: how much the user asks it to think (`effort_of`); a request's own effort goes before.
        small: by its name it has fewer than a billion parameters; such a model does not follow a form that it is only
            told, so it is shown demonstrations of every step, as a base model is.
    """

    accepts_stop: bool = True
    accepts_temperature: bool = True
    max_tokens_param: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    thinks: bool = False
    thinking_tokens: int = THINKING_TOKENS
    switch: (
        Literal["reasoning_effort", "enable_thinking", "thinking", "thinking_budget"] | None
    ) = None
    off: str = "none"
    can_stop_thinking: bool = False
    json_schema: bool | None = None
    effort: str | None = None
    small: bool = False

    def effort_in(self, config: lm15.Config) -> str | None:
        """How much a request with this `config` asks it to think; None: as it likes."""
        return config.reasoning.effort if config.reasoning else self.effort

    def thinks_at(self, effort: str | None) -> bool:
        """Whether a reply comes with thinking at this effort (None: as the model likes).

        Where some is asked for, an unknown family may think: its server may have been told so.
        """
        if effort is None:
            return self.thinks
        return effort != "off" or (self.thinks and not self.can_stop_thinking)

    def cap(self, wanted: int | None, effort: str | None, own: int | None = None) -> int | None:
        """The cap on a reply's tokens: what is asked, and room for thoughts where it thinks at this effort.

        A cap of the model's own (`own`) that leaves the room already is taken as it is.

        >>> thinking = profile_for("gpt-5")
        >>> Profile().cap(32, None), thinking.cap(32, None), thinking.cap(32, None, 16000), thinking.cap(9, None, 9)
        (32, 8224, 16000, 9)
        """
        if wanted is None or not self.thinks_at(effort) or (own is not None and wanted >= own):
            return wanted
        return max(own or 0, wanted + self.thinking_tokens)

    def fit(self, config: lm15.Config, own_cap: int | None = None) -> lm15.Config:
        """`config` without what the family refuses, and with room for thoughts."""
        effort = self.effort_in(config)
        changes: dict[str, Any] = {"max_tokens": self.cap(config.max_tokens, effort, own_cap)}
        takes_stop = self.accepts_stop and not self.thinks_at(effort)
        changes["stop"] = config.stop[:MOST_STOPS] if takes_stop else ()
        if not self.accepts_temperature:
            changes |= dict.fromkeys(SAMPLING)
        if self.json_schema is False:
            changes["response_format"] = None
        return replace(config, **changes)

    def steering(self, effort: str | None) -> dict[str, Any]:
        """The request fields that ask for `effort`; none where the family has no switch.

        >>> profile_for("Qwen/Qwen3-8B").steering("off")
        {'chat_template_kwargs': {'enable_thinking': False}}
        >>> profile_for("gpt-5-mini").steering("low")
        {'reasoning_effort': 'low'}
        """
        if effort is None or self.switch is None:
            return {}
        if self.switch == "reasoning_effort":
            return {"reasoning_effort": self.off if effort == "off" else effort}
        if self.switch == "thinking_budget":
            return {"chat_template_kwargs": {self.switch: 0}} if effort == "off" else {}
        return {"chat_template_kwargs": {self.switch: effort != "off"}}

    @property
    def unsteered(self) -> str:
        """What a user who asks for an effort has to know where no switch is known; else empty.

        >>> replace(profile_for("QwQ-32B"), effort="off").unsteered[:62]
        'no switch that turns its thinking off is known, so thinking=Fa'
        """
        off = self.effort == "off"
        if self.effort is None or self.switch is not None or (off and not self.thinks):
            return ""
        what = "for its thinking is known, so thinking=True and reasoning="
        if off:
            what = "that turns its thinking off is known, so thinking=False"
        return (
            f"no switch {what} sends nothing; its replies have {self.thinking_tokens:,} tokens more for thoughts. A "
            "server's own field goes into connect(…, extra_body=…)"
        )


_OPENAI = Profile(max_tokens_param="max_completion_tokens")
_REASONING = replace(
    _OPENAI, accepts_stop=False, accepts_temperature=False, thinks=True, thinking_tokens=8192,
    switch="reasoning_effort", off="low",
)  # fmt: skip
_OPEN = Profile(thinks=True)
_ENABLED = replace(_OPEN, switch="enable_thinking", can_stop_thinking=True)
_GEMINI = replace(_OPEN, thinking_tokens=8192, switch="reasoning_effort", off="low")
_GROK = replace(_OPEN, accepts_stop=False, thinking_tokens=8192)

# Switches as the families' cards and servers' documents have them (vLLM and SGLang: reasoning outputs; Gemini: OpenAI
# compatibility; xAI and Z.ai: reasoning, thinking mode). The first pattern that is found decides.
_FAMILIES: tuple[tuple[str, Profile], ...] = (
    (r"(?:non|no|not)[-_]?(?:think|reason)", Profile()),
    (r"gpt-5[\w.-]*-chat", _OPENAI),
    (r"gpt-5\.\d", replace(_REASONING, off="none", can_stop_thinking=True)),
    (r"gpt-5", replace(_REASONING, off="minimal")),
    (r"o[134](?:-|$)", _REASONING),
    (r"gpt-oss", replace(_OPEN, switch="reasoning_effort", off="low")),
    (r"qwen-?3[\w.-]*(?:instruct|coder)", Profile()),
    (r"qwen-?3[\w.-]*thinking", _OPEN),
    (r"qwen-?3", _ENABLED),
    (r"deepseek-v3\.[1-9]|granite-3\.[23]", replace(_ENABLED, thinks=False, switch="thinking")),
    (
        r"gemini-2\.5-flash-lite",
        replace(_GEMINI, thinks=False, off="none", can_stop_thinking=True),
    ),
    (r"gemini-2\.5-flash", replace(_GEMINI, off="none", can_stop_thinking=True)),
    (r"gemini-(?:2\.5|[3-9])", _GEMINI),
    (r"glm-5\.[3-9]", replace(_OPEN, switch="reasoning_effort", off="low")),
    (r"glm-(?:4\.[5-9]|5)|smol-?lm-?3|nemotron-3", _ENABLED),
    (r"gemma-?4", replace(_ENABLED, thinks=False)),
    (r"kimi-k2\.[5-9]", replace(_ENABLED, switch="thinking")),
    (r"seed-oss", replace(_ENABLED, switch="thinking_budget")),
    (r"grok-3-mini", replace(_GROK, switch="reasoning_effort", off="low")),
    (r"grok-4\.[3-9]", replace(_GROK, switch="reasoning_effort", can_stop_thinking=True)),
    (r"grok-(?:4|code)", _GROK),
    (r"nemotron-nano-\d+b-v2|nemotron-[\w.-]*v1[._]5|minimax-m\d", _OPEN),
    (r"deepseek-(?:r\d|reasoner)|qwq|magistral|glm-z1", _OPEN),
    # kimi-k2-thinking, phi-4-reasoning, …
    (r"(?:think|thinking|reason|reasoning|reasoner)(?![a-z])", _OPEN),
)


def profile_for(model: str) -> Profile:
    """The profile of the family that `model` belongs to, by its name with or without an owner; else the default.

    >>> profile_for("openai/o3-mini").accepts_stop, profile_for("gpt-4o-mini").accepts_stop
    (False, True)
    >>> profile_for("SmolLM2-135M-Instruct").small, profile_for("Qwen/Qwen3-8B").small
    (True, False)
    """
    name = model.lower()
    families = (
        profile
        for pattern, profile in _FAMILIES
        if re.search(rf"(?:^|[^a-z0-9])(?:{pattern})", name)
    )
    family = next(families, Profile())
    sizes = [float(number) * _UNITS[unit] for number, unit in _SIZE.findall(name)]
    return replace(family, small=True) if sizes and max(sizes) < 1e9 else family


_SIZE = re.compile(r"(?<![\dx.])(\d{1,4}(?:\.\d{1,3})?)([mb])(?![a-z0-9])")
"""The number of parameters in a model's name: ``135m``, ``0.5b``."""
_UNITS = {"m": 1e6, "b": 1e9}


_SCHEMA_SERVERS = frozenset({"vllm", "llamacpp", "ollama"})
"""Servers whose chat endpoint constrains the sampling itself, whichever model they serve."""
_HOLDS_SCHEMA = re.compile(
    # Structured outputs came with gpt-4o-mini and gpt-4o-2024-08-06, and to reasoning models with o1 itself.
    r"gpt-4o(?:-mini)?(?:-search-preview)?(?:-(?!2024-05-13)\d{4}-\d\d-\d\d)?|gpt-4\.[15][\w.-]*|gpt-5[\w.-]*"
    r"|o1(?:-\d{4}-\d\d-\d\d)?|o[34](?:-mini)?(?:-\d{4}-\d\d-\d\d)?"
)


def holds_schema(provider: str, model: str) -> bool | None:
    """Whether `provider` documents that it holds replies of `model` to a JSON schema; None: not known.

    OpenAI's list is by model; Mistral excepts one model. At Groq, Together and behind OpenRouter it depends on the
    model or its host, DeepSeek has JSON without a schema, and a server at the user's address may be anything:
    those get a schema only where the user says so.

    >>> holds_schema("openai", "gpt-4o-mini"), holds_schema("openai", "gpt-4-turbo"), holds_schema("groq", "llama3")
    (True, None, None)
    """
    name = model.lower()
    if provider == "openrouter" and name.startswith("openai/"):
        provider, name = "openai", name.removeprefix("openai/")
    if provider == "openai":
        return True if _HOLDS_SCHEMA.fullmatch(name) else None
    if provider == "mistral":
        return None if "mamba" in name else True
    return True if provider in _SCHEMA_SERVERS else None


def effort_of(thinking: bool | None, reasoning: str | None) -> str | None:
    """The one dial behind `thinking=` and `reasoning=`; None leaves it to the model.

    Raises:
        BadArgument: no such effort, or the two contradict each other.

    >>> effort_of(False, None), effort_of(None, "low"), effort_of(True, None)
    ('off', 'low', 'medium')
    """
    if reasoning is not None and reasoning not in EFFORTS:
        raise BadArgument(f"no reasoning effort '{reasoning}' (known: {', '.join(EFFORTS)})")
    if thinking is None:
        return reasoning
    if reasoning is not None and thinking == (reasoning == "off"):
        raise BadArgument(
            f"thinking={thinking} and reasoning='{reasoning}' contradict each other: give one of them"
        )
    return reasoning or ("medium" if thinking else "off")


_TAG = r"(?:\w+[:_])?(?:think|thinking|thoughts?)(?::\w+)?"
_HEAD = r"(?:<\|start\|>assistant(?: to=[\w.]{1,80})?)?<\|channel\|>"
_TAIL = r"\b[^<]{0,120}(?:<\|constrain\|>[^<]{0,40})?(?:<\|message\|>|\Z)"

# What opens thoughts, what closes them (or opens the reply itself), and what else stands around a reply. These are the
# formats that the reasoning parsers of vLLM, SGLang and llama.cpp know.
_MARKS: tuple[tuple[str, str, str], ...] = (
    # DeepSeek, Qwen, GLM, MiniMax, Nemotron, EXAONE, Seed-OSS, LongCat, …
    (rf"<{_TAG}>", rf"</{_TAG}>", ""),
    (r"\[THINK\]", r"\[/THINK\]", ""),  # Mistral
    (r"◁think▷", r"◁/think▷", ""),  # Kimi
    (
        r"<\|open\|>think<\|sep\|>",  # Kimi K3
        r"<\|close\|>think<\|sep\|>|<\|open\|>response<\|sep\|>",
        r"<\|close\|>(?:response|message)<\|sep\|>",
    ),
    # harmony: gpt-oss
    (rf"{_HEAD}(?:analysis|commentary){_TAIL}", rf"{_HEAD}final{_TAIL}", ""),
    (r"<\|channel>(?:thought\b)?\s?", r"<channel\|>", r"<turn\|>"),  # Gemma 4
    (
        r"<\|START_THINKING\|>",  # Cohere
        r"<\|END_THINKING\|>|<\|START_(?:RESPONSE|TEXT)\|>",
        r"<\|END_(?:RESPONSE|TEXT)\|>",
    ),
    (
        r"<\|begin_of_thought\|>",  # OpenThinker, Sky-T1
        r"<\|end_of_thought\|>|<\|begin_of_solution\|>",
        r"<\|end_of_solution\|>",
    ),
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>", ""),  # Apertus
    (r"<\|think\|>", r"<\|content\|>", ""),  # Solar
    ("", r"\[BEGIN FINAL RESPONSE\]", r"\[END FINAL RESPONSE\]"),  # Apriel
)
_OPENS, _CLOSES, _AROUND = (
    "|".join(filter(None, column)) for column in zip(*_MARKS, strict=True)
)
_MARK = re.compile(
    rf"(?=[<\[◁])(?:(?P<opens>{_OPENS})|(?P<closes>{_CLOSES})|(?P<around>{_AROUND})"
    r"|(?P<ends><\|(?:end|return|call)\|>))",
    re.IGNORECASE,
)
# Thoughts that plain words open, which count only where a reply begins: what opens them, what opens the reply itself.
_WORDS = (
    (
        # Harmony whose special tokens the server left out. Glued to what follows, "analysis" is no English word.
        r"(?:assistant)?(?:analysis|commentary)(?=[^\W_]| to=|.*assistantfinal)|(?=assistantfinal)",
        r"assistantfinal(?: ?json(?=\s*[\[{]))?",
    ),
    (r"Here(?:'s| is) my thought process:", r"Here(?:'s| is) my response:"),  # Granite
    (r"Here are my reasoning steps:", r"\[BEGIN FINAL RESPONSE\]"),  # Apriel
    # Where a field follows, the two are fields of DSPy's XMLAdapter, which asks for them.
    (r"<reasoning>(?!.*</reasoning>\s*<\w)", r"</reasoning>"),
    # The name of a channel is left of harmony, and of Gemma 4, where they did not think.
    (r"(?=final[A-Z\d]|thought\n)", r"final|thought\n"),
)
_FIRST_WORDS = (
    "assistantanalysis",
    "assistantcommentary",
    "assistantfinal",
    "analysis",
    "commentary",
    "final",
    "thought\n",
    "Here is my thought process:",
    "Here's my thought process:",
    "Here are my reasoning steps:",
)
_TOKEN = r"<\|(?:start|channel|constrain|open|close)\|>[^<]{0,120}"
_MAY_BE_A_MARK = re.compile(rf"(?:{_TOKEN}){{0,3}}(?:[<\[◁][^>\]▷]{{0,24}})?\Z")


def split_thinking(text: str) -> tuple[str, str]:
    """A reply's text as (reasoning, reply); text without thoughts comes back unchanged, as the reply.

    Thoughts are marked by the tags and special tokens of `_MARKS`, any number of times, or by the words of `_WORDS`.
    Where the opening tag stood in the chat template, all before the closing tag is reasoning; where the thinking was
    cut off, all after the opening tag is, and the reply is empty.

    >>> split_thinking("<think>a or b?</think>b"), split_thinking("analysisA or b?assistantfinalb")
    (('a or b?', 'b'), ('A or b?', 'b'))
    >>> split_thinking("a or b?</think>\\n\\nb"), split_thinking("<think>a or")
    (('a or b?', 'b'), ('a or', ''))
    """
    thoughts, spoken = list[str](), list[str]()
    start, thinking, channels = 0, False, False
    for opens, closes in _WORDS:
        if opening := re.match(rf"\s*(?:{opens})", text, re.DOTALL):
            closing = re.compile(closes).search(text, opening.end())
            thoughts.append(text[opening.end() : closing.start() if closing else len(text)])
            start = closing.end() if closing else len(text)
            break
    marks = list(_MARK.finditer(text, start))
    if not marks and not thoughts:
        return "", text
    for mark in marks:
        kind = mark.lastgroup
        channels = channels or "<|c" in mark[0]
        if kind == "ends":
            # other families end their turns with such a token, and the next may follow
            if not channels:
                continue
            kind = "closes" if thinking else "around"
        if kind == "closes":  # it makes thinking of what stands before it, opened or not
            thoughts.append(text[start : mark.start()])
        elif thinking:
            continue  # an opening tag inside thinking is part of it
        else:
            spoken.append(text[start : mark.start()])
        start, thinking = mark.end(), kind == "opens"
    (thoughts if thinking else spoken).append(text[start:])
    reasoning = "\n".join(thought.strip() for thought in thoughts if thought.strip())
    return reasoning, "".join(spoken).strip()


def reply_so_far(text: str) -> str:
    """The reply in a text that is still being written: no thoughts, and nothing that may come to be their mark.

    >>> reply_so_far("So <th"), reply_so_far("<think>a or b?</think>Tolm"), reply_so_far("anal")
    ('So', 'Tolm', '')
    """
    words = text.lstrip()
    if words and any(first.startswith(words) for first in _FIRST_WORDS):
        return ""
    reply = split_thinking(text)[1]
    # harmony, whose final channel may yet follow
    if re.match(r"\s*(?:assistant)?(?:analysis|commentary)\b", reply):
        return ""
    unsure = _MAY_BE_A_MARK.search(reply)
    return reply[: unsure.start()].rstrip() if unsure and unsure[0] else reply


def cut_at_stop(text: str, stop: Sequence[str]) -> str:
    """`text` up to the first of the stop strings; cutting twice changes nothing.

    >>> cut_at_stop("Paris.\\n\\nQuestion: next", ["\\nQuestion:", "\\n\\n"])
    'Paris.'
    """
    ends = [at for string in stop if string and (at := text.find(string)) >= 0]
    return text[: min(ends)] if ends else text


class Provider(NamedTuple):
    """An OpenAI-compatible provider."""

    base_url: str
    key_variable: str = ""  # empty: it wants no key


PROVIDERS: Mapping[str, Provider] = {
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": Provider("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "vllm": Provider("http://localhost:8000/v1"),
    "llamacpp": Provider("http://localhost:8080/v1"),
    "ollama": Provider("http://localhost:11434/v1"),
}
"""Providers by the first part of a model's name."""
IN_PROCESS = ("offline", "local", "hf")
"""The models that need no server, beside a ``.gguf`` file."""


def place_of(name: str, api_base: str | None, api_key: str | None) -> tuple[str, str, Key]:
    """The address (`addresses_of` checked it), the name that the server knows, and the key, of `name`."""
    prefix, _, rest = name.partition("/")
    known = PROVIDERS.get(prefix)
    if api_base is not None:
        # A name may hold slashes of its own (Qwen/Qwen2.5-7B-Instruct): only a provider's prefix comes off. And a
        # provider's key goes to an address of the user's only where the name says that provider.
        model = rest if known and rest else name
        variable = known.key_variable if known and known.key_variable else "BLENDFILTER_API_KEY"
        return api_base, model, _key(api_key, variable)
    if not rest:
        where = "or say where it is served (api_base=URL)"
        near = guess(name, IN_PROCESS)
        words = f"write provider/model (openai/{name}), {where}"
        raise BadArgument(
            f"'{name}' names no provider{f'.{near} Or ' if near else ': '}{words}"
        )
    if known is None:
        names = {*PROVIDERS, *known_providers()}
        raise UnknownName(
            f"no provider '{prefix}'.{guess(prefix, names)} (known: {', '.join(sorted(_NAMED & names))}, and "
            f"{more_providers()}) - or say where '{name}' is served (api_base=URL)"
        )
    key = _key(api_key, known.key_variable)
    if known.key_variable and key == _NO_KEY and not api_key:
        raise NoKey(
            f"{name} wants a key: set {known.key_variable}, or point api_base= at a server of your own"
        )
    return known.base_url, rest, key


_NAMED = {*PROVIDERS, "anthropic", "azure", "bedrock", "gemini", "vertex_ai", "xai"}
"""Providers that an error names, of the hundred and more."""
AT_OWN_ADDRESS = frozenset({"azure", "azure_ai"})
"""Providers that serve each customer at an address of his own, and price its models all the same."""


def spoken_by_dspy(name: str, api_base: str | Sequence[str] | None) -> bool:
    """Whether `name` is of a provider that we leave to DSPy's own client: not one of ours, but one that it knows.

    At an address of the user's own an OpenAI-compatible server is expected, whatever the model is called, except for
    providers that have no other address. (For a gateway that speaks a provider's own protocol: a `dspy.LM`.)

    >>> [spoken_by_dspy(name, None) for name in ("anthropic/claude-opus-4-6", "openai/gpt-4o", "nowhere/model")]
    [True, False, False]
    >>> spoken_by_dspy("anthropic/claude-opus-4-6", "http://localhost:4000/v1")
    False
    """
    prefix, _, rest = name.partition("/")
    if (
        not rest
        or prefix in PROVIDERS
        or (api_base is not None and prefix not in AT_OWN_ADDRESS)
    ):
        return False
    return prefix in known_providers()


def key_of(name: str, given: str | None) -> tuple[Key | None, str]:
    """The key that DSPy's client is given for `name`, or None where it finds its own, and what to do if it is refused.

    Raises: NoKey, where the provider is known to want one and none is there.
    """
    provider = name.partition("/")[0]
    variables = key_variables(provider)
    if given:
        return _key(given, ""), "check the key that was given (api_key=)"
    set_here = [variable for variable in variables if os.environ.get(variable)]
    if variables and not set_here:
        raise NoKey(f"{name} wants a key: set {' or '.join(variables)}")
    return None, f"check the key in the variable {set_here[0]}" if set_here else ""


_NO_KEY = "none"  # sent to servers that want no key


def _key(given: str | None, variable: str) -> Key:
    """The key that was given, else that of the environment variable; its hint says where it is from."""
    found = given or os.environ.get(variable)
    if not found:
        return Key(
            _NO_KEY,
            f"none was given: set {variable}" if variable else "none was given (api_key=)",
        )
    what = (
        "the key that was given (api_key=)" if given else f"the key in the variable {variable}"
    )
    checked(key := Key(found, f"check {what}"), what)
    return key


def addresses_of(api_base: str | Sequence[str] | None) -> tuple[str | None, ...]:
    """The addresses that a user named, each checked: several serve one model; (None,): the provider's own.

    >>> addresses_of(["http://a:8000/v1/", "http://b:8000/v1"])
    ('http://a:8000/v1', 'http://b:8000/v1')
    """
    if api_base is None:
        return (None,)
    given = [api_base] if isinstance(api_base, str) else list(api_base)
    if not given:
        raise BadArgument(
            "api_base is an empty list: name at least one address, or leave it out"
        )
    for address in given:
        try:
            parts = urlsplit(address)
            good = parts.scheme in ("http", "https") and bool(parts.hostname)
            good = good and parts.port != 0 and "@" not in parts.path
        except (ValueError, TypeError, AttributeError):
            good = False
        if not good or re.search(r"[\s\0]", address):
            raise BadArgument(
                f"'{http.without_login(str(address))}' is no address: write it as http://host:port/v1"
            )
        # it would be recorded with the address (a login is not)
        if parts.query or parts.fragment:
            raise BadArgument(
                "the address must hold no query, such as a key: put the key into BLENDFILTER_API_KEY"
            )
    return tuple(address.rstrip("/") for address in given)
