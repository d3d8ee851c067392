"""A model in this process as an engine: what it is asked, what it says, and that order changes nothing."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from dspy import lm15
from local_model import asked, engine, replied, text_of, weights

from blendfilter.errors import BadArgument, BadData, WorkFailed
from blendfilter.lm.local import replying
from blendfilter.lm.local.engine import LocalEngine
from blendfilter.lm.local.prefixes import TOGETHER
from blendfilter.lm.model import connect
from blendfilter.lm.tokenisers import tokeniser_for

CAPITAL = "What is the capital of France? Answer in one sentence."


def test_it_answers() -> None:
    response = replied(asked(CAPITAL, max_tokens=40))
    assert text_of(response) == "The capital of France is Paris."
    assert (response.finish_reason, response.model) == ("stop", "SmolLM2-135M-Instruct.Q4_1")
    assert (response.usage.input_tokens, response.usage.output_tokens) == (42, 7)


def test_a_prompt_that_was_read_counts_as_cached() -> None:
    replied(asked("Something else entirely, to begin with."))
    first, second = replied(asked(CAPITAL)).usage, replied(asked(CAPITAL)).usage
    assert (first.cache_read_tokens or 0) <= 24  # at most the template's own system turn
    assert second.cache_read_tokens == 42 - TOGETHER
    assert first.input_tokens == second.input_tokens == 42


def test_a_prompt_is_counted_as_it_is_read() -> None:
    told = engine().count_tokens(CAPITAL)
    assert told == 42 == replied(asked(CAPITAL, max_tokens=1)).usage.input_tokens
    assert "tokeniser of" in tokeniser_for(connect("local")).name


@pytest.mark.slow
def test_replies_do_not_depend_on_what_was_asked_before_nor_on_the_order() -> None:
    shared = "Marrowen is the largest of the Ondrell Isles. Penn Askell lies on its north coast. " * 3
    requests = [
        asked(shared + question, max_tokens=10)
        for question in ("Where is Penn Askell?", "Which isle is largest?", "What lies north?")
    ]
    alone = LocalEngine(weights(), context=1024, keep=0)
    expected = []
    for request in requests:
        alone._opened.model().prefixes.forget()
        expected.append(text_of(replied(request, alone)))
    alone.close()

    async def together(order: list[int]) -> list[str]:
        responses = await asyncio.gather(*(engine().complete(requests[i]) for i in order))
        return [text_of(response) for response in responses]

    for order in ([0, 1, 2, 1], [2, 2, 1, 0]):
        assert asyncio.run(together(order)) == [expected[i] for i in order]


def test_the_reply_ends_at_its_cap_and_at_a_stop_string() -> None:
    whole = text_of(replied(asked(CAPITAL, max_tokens=40)))
    capped = replied(asked(CAPITAL, max_tokens=3))
    assert (capped.finish_reason, capped.usage.output_tokens) == ("length", 3)
    assert whole.startswith(text_of(capped))
    stopped = replied(asked(CAPITAL, max_tokens=40, stop=(" Fr",)))
    assert (text_of(stopped), stopped.finish_reason) == ("The capital of", "stop")
    assert (stopped.usage.output_tokens or 0) < 6


def test_log_probabilities_of_the_reply() -> None:
    response = replied(asked(CAPITAL, max_tokens=40, logprobs=2, stop=(" Fr",)))
    assert response.logprobs is not None
    assert "".join(score.token for score in response.logprobs) == "The capital of"
    assert response.logprobs_complete
    assert all(score.logprob == score.top[0].logprob <= 0 for score in response.logprobs)  # greedy: the likeliest
    assert all(len(score.top) == 2 and score.top[0].logprob >= score.top[1].logprob for score in response.logprobs)
    assert replied(asked(CAPITAL, logprobs=0)).logprobs[0].top == ()  # type: ignore[index]
    assert replied(asked(CAPITAL)).logprobs is None


def test_a_prompt_longer_than_the_context_is_refused_before_anything_is_computed() -> None:
    small = LocalEngine(weights(), context=64)
    with pytest.raises(lm15.ContextLengthError, match=r"tokens, and SmolLM2.* was opened with a context of 64"):
        replied(asked("word " * 80), small)
    assert small._opened.model().prefixes.live == []
    full = replied(asked("word " * 20, max_tokens=500), small)  # the reply has what is left
    assert (full.finish_reason, full.usage.total_tokens) == ("length", 64) or full.finish_reason == "stop"


def test_a_reply_may_fill_the_context_to_its_last_token() -> None:
    raw = LocalEngine(weights(), context=256, endpoint="completions")
    response = replied(asked("the sea " * 115 + "the", max_tokens=500), raw)
    assert response.usage.output_tokens > 5
    assert (response.finish_reason, response.usage.total_tokens) == ("length", 256)


def test_a_raw_prompt_passes_no_template() -> None:
    raw = LocalEngine(weights(), context=256, endpoint="completions")
    response = replied(asked("The capital of France is", max_tokens=4), raw)
    assert response.usage.input_tokens == 5
    assert text_of(response).strip()


def test_a_prompt_of_nothing_is_an_error_and_ends_no_process() -> None:
    raw = LocalEngine(weights(), context=64, endpoint="completions")
    with pytest.raises(lm15.InvalidRequestError, match="the prompt is empty"):
        replied(asked(""), raw)
    assert replied(asked("", max_tokens=1)).usage.output_tokens == 1  # in a chat the template's words stand there


def test_closed_in_the_middle_it_says_so_and_opens_nothing_again() -> None:
    short = LocalEngine(weights(), context=512)

    async def main() -> None:
        calls = [asyncio.create_task(short.complete(asked("Tell a story.", max_tokens=400))) for _ in range(2)]
        while short.turns._current is None:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(short.close)
        for call in calls:
            with pytest.raises(WorkFailed, match="was closed"):
                await call
        with pytest.raises(WorkFailed, match="was closed"):
            await short.complete(asked(CAPITAL))

    asyncio.run(main())
    assert short._opened._model is None


class _Clock:
    """A clock that is a second later each time it is looked at."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


@pytest.mark.parametrize(
    ("prompt", "deadline", "read", "most"),
    [
        pytest.param("Tell a long story of the sea.", 9, True, 8, id="between two tokens"),
        pytest.param("The sea is wide. " * 200, 4, False, 0, id="between two batches of the prompt"),
    ],
)
def test_a_deadline_ends_a_call(
    prompt: str, deadline: float, read: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replying, "time", _Clock())
    short = LocalEngine(weights(), context=2048, deadline=deadline)
    with pytest.raises(lm15.TimeoutError, match=rf"no whole reply within the deadline of {deadline} s \(--deadline\)"):
        replied(asked(prompt, max_tokens=400), short)
    opened, tokens = short._opened.model(), short._task(asked(prompt)).tokens
    assert (opened.prefixes.live == tokens) is read
    assert opened.llama.n_tokens - len(opened.prefixes.live) <= most
    monkeypatch.undo()
    assert text_of(replied(asked(CAPITAL, max_tokens=2), short)) == "The capital"  # the next call is none the worse
    short.close()


def test_a_deadline_is_given_where_the_model_is_connected() -> None:
    lm = connect("local", deadline=7)
    assert isinstance(lm.inner, LocalEngine)
    assert lm.inner._deadline == lm.dump_state()["deadline"] == 7
    assert connect("local").inner._deadline is None  # type: ignore[attr-defined]
    with pytest.raises(BadArgument, match="deadline must be a number of seconds above 0"):
        connect("local", deadline=0)
    with pytest.raises(BadArgument, match="local answers in this process: timeout is for models behind a server"):
        connect("local", timeout=7, deadline=7)


@pytest.mark.timeout(300)
def test_a_prompt_of_every_private_use_character_is_answered() -> None:
    """Texts out of PDFs hold such characters; whichever a message has, its marks in the template are others."""
    every = "".join(map(chr, range(0xE000, 0xF900)))
    with pytest.raises(lm15.ContextLengthError):
        replied(asked(every))
    wording = engine()._opened.model().wording
    assert wording._pieces([["user", every]], {})[1] == (every, True)


def test_thinking_is_kept_apart() -> None:
    """A model that is known to think: its cap is raised, and stop strings count after the thinking alone."""
    from blendfilter.lm.local.replying import Task, _ended
    from blendfilter.lm.profiles import profile_for

    thinker = LocalEngine(weights(), context=512, profile=profile_for("qwen3-8b"))
    request = asked(CAPITAL, max_tokens=40, stop=("\n",))
    assert thinker.reply_cap(request) == 40 + profile_for("qwen3-8b").thinking_tokens
    assert engine().reply_cap(request) == 40
    task: Task = thinker._task(request)
    assert (task.thinks, task.room) == (True, 512 - len(task.tokens))
    assert not _ended("<think>a\nb", task)
    assert not _ended("<think>a\nb</think>c", task)
    assert _ended("<think>a\nb</think>c\nd", task)


def test_what_is_no_text_is_refused() -> None:
    picture = lm15.Request(model="m", messages=(lm15.Message("user", (lm15.ImagePart(url="http://x/y.png"),)),))
    with pytest.raises(lm15.UnsupportedFeatureError, match="text only"):
        replied(picture)


def test_a_cancelled_call_makes_room() -> None:
    async def main() -> str:
        long = asyncio.create_task(engine().complete(asked("Tell a long story.", max_tokens=1500, temperature=1.0)))
        waits = asyncio.create_task(engine().complete(asked("Tell another.", max_tokens=1500, temperature=1.0)))
        await asyncio.sleep(0.5)
        long.cancel()
        waits.cancel()
        return text_of(await asyncio.wait_for(engine().complete(asked(CAPITAL, max_tokens=2)), 20))

    assert asyncio.run(main()) == "The capital"


def test_a_corrupt_file_is_told_at_the_first_call(tmp_path: Path) -> None:
    file = tmp_path / "cut.gguf"
    with weights().open("rb") as source:
        file.write_bytes(source.read(2_000_000))
    cut = LocalEngine(file)
    with pytest.raises(BadData, match=r"llama\.cpp cannot load .*cut\.gguf"):
        replied(asked(CAPITAL), cut)


def test_an_engine_that_nobody_holds_ends_its_thread() -> None:
    short = LocalEngine(weights(), context=128)
    replied(asked("Hi", max_tokens=1), short)
    opened, thread = short._opened, short.turns._thread
    assert thread is not None
    assert thread.is_alive()
    del short
    gc.collect()
    assert not thread.is_alive()
    assert opened._model is None


@pytest.mark.slow
def test_the_process_ends_cleanly_in_the_middle_of_a_call() -> None:
    code = (
        "import time\nfrom blendfilter.lm import bridge\nfrom local_model import asked, engine\n"
        "request = asked('Tell a long story.', max_tokens=1500, temperature=1.0)\n"
        "bridge.submit(engine().complete(request))\n"
        "time.sleep(2.5)\nprint('over')"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "over\n", "")


def test_a_forked_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: own + 1)
    with pytest.raises(BadArgument, match="does not survive a fork"):
        replied(asked(CAPITAL))
