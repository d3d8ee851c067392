"""Model families, the thinking dial, what a server teaches, and reading thinking out of a reply."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blendfilter.errors import BadArgument
from blendfilter.lm.profiles import (
    Learned,
    Profile,
    cut_at_stop,
    effort_of,
    holds_schema,
    profile_for,
    split_thinking,
)

PLAIN = st.text(st.characters(blacklist_characters="<[", blacklist_categories=["Cs"]))
SOUP = st.lists(
    st.sampled_from(["<think>", "</think>", "<THINK>", "</Think>", "[THINK]", "[/THINK]", "word", " ", "\n"])
)


@pytest.mark.parametrize(
    "name",
    ["gpt-4o-mini", "llama3.2", "Qwen/Qwen2.5-7B-Instruct", "Qwen3-30B-A3B-Instruct-2507", "qwen3-coder", "gemma-o3x"],
)
def test_ordinary_models_accept_everything(name: str) -> None:
    assert profile_for(name) == Profile()


@pytest.mark.parametrize("name", ["o1", "openai/o3-mini", "o4-mini-2025-04-16", "gpt-5", "gpt-5-nano", "gpt-5.1"])
def test_openai_reasoning_models_refuse_stop_temperature_and_max_tokens(name: str) -> None:
    profile = profile_for(name)
    assert (profile.accepts_stop, profile.accepts_temperature) == (False, False)
    assert profile.max_tokens_param == "max_completion_tokens"
    assert profile.thinks
    assert profile.thinking_tokens > 0


def test_the_chat_variant_of_gpt5_does_not_think() -> None:
    for name in ("gpt-5-chat-latest", "gpt-5.1-chat"):
        assert not profile_for(name).thinks
        assert profile_for(name).accepts_stop


@pytest.mark.parametrize(
    "name",
    ["deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "deepseek-reasoner", "Qwen/QwQ-32B", "mistralai/Magistral-Small-2506"],
)
def test_models_that_always_think_have_no_switch(name: str) -> None:
    profile = profile_for(name)
    assert profile.thinks
    assert profile.steering("off") == {}
    assert profile.thinks_at("off")


def test_the_dial_is_spelled_as_each_family_wants_it() -> None:
    assert profile_for("qwen3:8b").steering("off") == {"chat_template_kwargs": {"enable_thinking": False}}
    assert profile_for("Qwen/Qwen3-8B").steering("high") == {"chat_template_kwargs": {"enable_thinking": True}}
    assert profile_for("deepseek-ai/DeepSeek-V3.1").steering("low") == {"chat_template_kwargs": {"thinking": True}}
    assert [profile_for(n).steering("off")["reasoning_effort"] for n in ("o3", "gpt-5", "gpt-5.2", "gpt-oss-20b")] == [
        "low", "minimal", "none", "low",
    ]  # fmt: skip
    assert profile_for("gpt-4o").steering("low") == {}


def test_whether_a_reply_comes_with_thinking() -> None:
    qwen, hybrid, plain = profile_for("qwen3-8b"), profile_for("deepseek-v3.1"), Profile()
    assert [qwen.thinks_at(e) for e in (None, "off", "low")] == [True, False, True]
    assert [hybrid.thinks_at(e) for e in (None, "off", "low")] == [False, False, True]
    assert [plain.thinks_at(e) for e in (None, "off", "low")] == [False, False, False]


def test_thinking_and_reasoning_are_one_dial() -> None:
    assert [effort_of(t, r) for t, r in [(None, None), (False, None), (True, "low"), (False, "off")]] == [
        None, "off", "low", "off",
    ]  # fmt: skip
    with pytest.raises(BadArgument, match="known: off, minimal"):
        effort_of(None, "hard")
    with pytest.raises(BadArgument, match="contradict"):
        effort_of(False, "high")
    with pytest.raises(BadArgument, match="contradict"):
        effort_of(True, "off")


def test_a_refused_cap_is_renamed_once_and_then_dropped() -> None:
    learned = Learned()
    learned.learn("max_completion_tokens")
    assert learned.fit({"max_completion_tokens": 5}) == {"max_tokens": 5}
    learned.learn("max_tokens")
    assert learned.fit({"max_completion_tokens": 5}) == {}


def test_log_probabilities_go_with_their_alternatives() -> None:
    learned = Learned()
    learned.learn("logprobs")
    assert learned.fit({"logprobs": True, "top_logprobs": 3, "seed": 1}) == {"seed": 1}


@pytest.mark.parametrize(
    ("text", "reasoning", "reply"),
    [
        ("<think>\na\n</think>\n\nb", "a", "b"),
        ("a</think>b", "a", "b"),
        ("<think>a, never done", "a, never done", ""),
        ("<THINK>a</Think> b <think>c</think> d", "a\nc", "b  d"),
        ("<think>a <think> b</think>c", "a <think> b", "c"),
        ("[THINK]a[/THINK]b", "a", "b"),
        ("<think></think>b", "", "b"),
        ("<think>", "", ""),
        ("  b  ", "", "  b  "),
    ],
)
def test_thinking_is_split_from_the_reply(text: str, reasoning: str, reply: str) -> None:
    assert split_thinking(text) == (reasoning, reply)


@given(PLAIN)
def test_text_without_tags_is_unchanged(text: str) -> None:
    assert split_thinking(text) == ("", text)


@given(PLAIN, PLAIN)
def test_the_opening_tag_may_be_missing(thought: str, reply: str) -> None:
    expected = (thought.strip(), reply.strip())
    assert split_thinking(f"<think>{thought}</think>{reply}") == expected
    assert split_thinking(f"{thought}</think>{reply}") == expected


@given(SOUP)
def test_no_tag_reaches_the_reply_and_no_word_is_lost(pieces: list[str]) -> None:
    text = "".join(pieces)
    reasoning, reply = split_thinking(text)
    assert split_thinking(reply) == ("", reply)
    assert (reasoning + reply).count("word") == text.count("word")


@given(st.text("ab\n. "), st.lists(st.text("ab\n. ", max_size=3), max_size=3))
def test_cutting_at_stop_strings_is_idempotent(text: str, stop: list[str]) -> None:
    cut = cut_at_stop(text, stop)
    assert text.startswith(cut)
    assert cut_at_stop(cut, stop) == cut
    assert not any(string in cut for string in stop if string)


@pytest.mark.parametrize(
    "model",
    [
        "gpt-4o", "gpt-4o-mini", "gpt-4o-mini-2024-07-18", "gpt-4o-2024-08-06", "gpt-4o-2024-11-20", "gpt-4.1",
        "gpt-4.1-nano-2025-04-14", "gpt-4.5-preview", "gpt-5", "gpt-5.2", "gpt-5-chat-latest", "o1", "o1-2024-12-17",
        "o3", "o3-mini", "o4-mini-2025-04-16", "GPT-4o-mini", "gpt-4o-search-preview",
    ],
)  # fmt: skip
def test_openais_models_with_structured_outputs(model: str) -> None:
    assert holds_schema("openai", model) is True
    assert holds_schema("openrouter", f"openai/{model}") is True
    assert holds_schema("groq", model) is None


@pytest.mark.parametrize(
    "model",
    ["gpt-4o-2024-05-13", "gpt-4", "gpt-4-turbo", "gpt-4-0613", "gpt-3.5-turbo", "o1-mini", "o1-preview",
     "chatgpt-4o-latest", "gpt-4o-audio-preview", "gpt-4o-realtime-preview", "ft:gpt-3.5-turbo:x", "davinci-002"],
)  # fmt: skip
def test_openais_models_without_them_or_unknown(model: str) -> None:
    assert holds_schema("openai", model) is None


def test_servers_that_constrain_whatever_they_serve() -> None:
    assert [holds_schema(each, "any/model") for each in ("vllm", "llamacpp", "ollama")] == [True] * 3
    assert [holds_schema(each, "any") for each in ("together", "groq", "deepseek", "", "m")] == [None] * 5
    assert holds_schema("mistral", "open-codestral-mamba") is None


def test_a_family_says_nothing_of_the_server() -> None:
    assert {profile_for(name).json_schema for name in ("gpt-5", "o3", "gpt-4o-mini", "qwen3-8b")} == {None}
