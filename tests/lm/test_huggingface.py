"""Models of Hugging Face in this process: replies in batches, and what one does not depend on."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import dspy
import pytest
import scoring_models as made
from dspy import lm15
from small_world import Command, journaled, stable

from blendfilter.errors import BadArgument, BadData, MissingExtra, MissingFile, UnknownName, WorkFailed
from blendfilter.lm import huggingface
from blendfilter.lm.checkpoints import checkpoint_of, fingerprint, open_tokenizer, prompt_ids
from blendfilter.lm.huggingface import HuggingFaceEngine, could_be, name_of, settings_in
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.profiles import profile_for
from blendfilter.lm.scoring import scorer

torch = pytest.importorskip("torch", reason="needs the extra [hf]")

PROMPTS = ["One, two,", "Monday, Tuesday, Wednesday, Thursday,", "The letters are A, B,", "One, " * 20, "Tuesday,"]
TEMPLATE = (
    "{% for message in messages %}<s>{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if enable_thinking %}<think>{% endif %}One, two,"
)
DECODERS = [made.taught, made.llama, made.gemma, made.recurrent]
OTHERS = [made.t5, made.bart]


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def blendfilter(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BLENDFILTER_CACHE", str(tmp_path / "cache"))
    return Command(monkeypatch, capsys)


def opened(folder: Path, **how: Any) -> HuggingFaceEngine:
    """An engine on the processor."""
    return HuggingFaceEngine(checkpoint_of(folder), "tiny", **{"device": "cpu", **how})


@cache
def engine(kind: Callable[[], Path] = made.taught) -> HuggingFaceEngine:
    """One that tests share."""
    return opened(kind())


def chatty(to: Path, **config: Any) -> Path:
    """A copy of the model that counts, whose tokeniser has a chat template."""
    shutil.copytree(made.taught(), to)
    known = json.loads((to / "tokenizer_config.json").read_text())
    (to / "tokenizer_config.json").write_text(json.dumps(known | {"chat_template": TEMPLATE}))
    return to


def request(text: str, *, system: str | None = None, **config: Any) -> lm15.Request:
    """A user's message; greedy and short by default."""
    settings = {"temperature": 0.0, "max_tokens": 12, **config}
    return lm15.Request(model="m", messages=(lm15.Message.user(text),), system=system, config=lm15.Config(**settings))


def text_of(response: lm15.Response) -> str:
    return "".join(part.text for part in response.message.parts if isinstance(part, lm15.TextPart))


def reply(to: lm15.Request, by: HuggingFaceEngine | None = None) -> lm15.Response:
    return asyncio.run((by or engine()).complete(to))


def replies(to: list[lm15.Request], by: HuggingFaceEngine) -> list[str]:
    """Those to requests that wait together."""

    async def main() -> list[lm15.Response]:
        return await asyncio.gather(*(by.complete(each) for each in to))

    return [text_of(each) for each in asyncio.run(main())]


@contextmanager
def full_above(rows: int, by: HuggingFaceEngine, tokens: int = 2**20) -> Iterator[None]:
    """A machine whose memory holds so many rows at a time, and so many tokens of a row."""

    def look(_: object, given: tuple[Any, ...], __: object) -> None:
        if given[0].shape[0] > rows or given[0].shape[1] > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 46.00 MiB.")

    hook = by._writer.loaded.model.get_input_embeddings().register_forward_hook(look)  # type: ignore[union-attr]
    yield
    hook.remove()


class TestBatches:
    @pytest.mark.parametrize("kind", [*DECODERS, *OTHERS])
    def test_a_reply_is_the_same_alone_and_in_a_batch(self, kind: Callable[[], Path]) -> None:
        """Greedy and drawn, longer and shorter ones, more of them than a batch holds."""
        asked = [
            request(text, max_tokens=3 + 4 * i, **how)
            for how in ({}, {"temperature": 1.0}, {"temperature": 0.8, "top_p": 0.9, "top_k": 20, "seed": 3})
            for i, text in enumerate(PROMPTS)
        ]
        alone = [text_of(reply(each, engine(kind))) for each in asked]
        assert replies(asked, opened(kind(), batch_size=4)) == alone

    @pytest.mark.parametrize("kind", [made.taught, made.phi])
    def test_it_writes_what_transformers_writes(self, kind: Callable[[], Path]) -> None:
        """Phi-3's positions turn by the longest text of a batch: long and short ones wait together here."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        model, words = AutoModelForCausalLM.from_pretrained(kind()), AutoTokenizer.from_pretrained(kind())
        texts = [*PROMPTS, "One, two, three, " * 15]
        for text, written in zip(texts, replies([request(text) for text in texts], engine(kind)), strict=True):
            ids = torch.tensor([words(text)["input_ids"]])
            out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
            expected = words.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
            assert written == expected

    @pytest.mark.parametrize("kind", OTHERS)
    def test_what_a_checkpoint_says_of_its_generation_is_no_part_of_a_request(
        self, kind: Callable[[], Path], tmp_path: Path
    ) -> None:
        shutil.copytree(kind(), tmp_path / "own")
        file = tmp_path / "own" / "generation_config.json"
        more = {"repetition_penalty": 5.0, "no_repeat_ngram_size": 1, "min_length": 30, "max_length": 3}
        file.write_text(json.dumps(json.loads(file.read_text()) | more))
        asked = request("One, two,", logprobs=1)
        one, other = reply(asked, opened(tmp_path / "own")), reply(asked, engine(kind))
        assert (text_of(one), one.finish_reason, one.logprobs) == (text_of(other), other.finish_reason, other.logprobs)

    def test_an_encoder_decoder_too(self) -> None:
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

        for kind in OTHERS:
            model, words = AutoModelForSeq2SeqLM.from_pretrained(kind()), AutoTokenizer.from_pretrained(kind())
            model.generation_config.forced_eos_token_id = None  # BART's: a reply at its cap is cut, and says so
            for text in PROMPTS[:2]:
                ids = torch.tensor([words(text)["input_ids"]])
                out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False)
                assert text_of(reply(request(text), engine(kind))) == words.decode(out[0], skip_special_tokens=True)

    def test_a_step_writes_a_token_of_every_reply(self) -> None:
        few = opened(made.taught(), batch_size=4)
        reply(request("One,"), few)
        model = few._writer.loaded.model  # type: ignore[union-attr]
        shapes: list[tuple[int, int]] = []
        hook = model.get_input_embeddings().register_forward_hook(lambda _, given, __: shapes.append(given[0].shape))
        replies([request(text) for text in PROMPTS[:4]], few)
        hook.remove()
        assert len(shapes) <= 2 * 12  # one by one it would be 4 times 12
        assert max(rows for rows, width in shapes if width == 1) >= 3


class TestCalls:
    def test_its_tokens_are_counted(self) -> None:
        done = reply(request("One, two,", max_tokens=5))
        assert (done.usage.input_tokens, done.usage.output_tokens) == (engine().count_tokens("One, two,"), 5)
        assert done.finish_reason == "length"

    def test_a_stop_string_ends_it_and_the_end_mark_does(self) -> None:
        done = reply(request("One, two,", max_tokens=40, stop=(" five",)))
        assert (text_of(done), done.finish_reason) == (" three, four,", "stop")
        assert (done.usage.output_tokens or 99) < 20

    def test_log_probabilities(self) -> None:
        done = reply(request("One, two,", logprobs=2))
        assert "".join(token.token for token in done.logprobs or ()) == text_of(done)
        for token in done.logprobs or ():
            assert token.logprob <= 0
            assert len(token.top) == 2
            assert token.top[0].logprob == pytest.approx(token.logprob)
        (scored,) = scorer(made.taught(), device="cpu").score([("One, two,", text_of(done))])
        assert scored.logprob == pytest.approx(sum(token.logprob for token in done.logprobs or ()), abs=1e-3)

    @pytest.mark.parametrize("kind", [made.taught, made.t5, made.bart])
    def test_their_tokens_add_up_to_the_text_and_the_likeliest_stands_first(self, kind: Callable[[], Path]) -> None:
        done = reply(request("One, two,", logprobs=20, max_tokens=20), engine(kind))
        assert done.logprobs_complete
        assert "".join(token.token for token in done.logprobs or ()) == text_of(done)
        for token in done.logprobs or ():
            assert token.top[0].logprob == pytest.approx(token.logprob)

    def test_penalties_and_seeds_change_what_is_drawn(self) -> None:
        drawn = [text_of(reply(request("The", temperature=2.0, seed=seed))) for seed in (1, 2, 1)]
        assert drawn[0] == drawn[2] != drawn[1]
        plain = text_of(reply(request("I, " * 9)))
        assert text_of(reply(request("I, " * 9, frequency_penalty=2.0, presence_penalty=2.0))) != plain

    def test_a_prompt_longer_than_the_context_is_refused(self) -> None:
        small = opened(made.taught(), context=64)
        with pytest.raises(lm15.ContextLengthError, match=r"and tiny was opened with a context of 64 \(context=\)"):
            reply(request("One, " * 40), small)
        done = reply(request("One, two,", max_tokens=200), small)
        assert (done.usage.input_tokens or 0) + (done.usage.output_tokens or 0) == 64
        with pytest.raises(lm15.ContextLengthError):  # what the model was trained on
            reply(request("One, " * 400))
        for wrong in (8, 512):
            with pytest.raises(BadArgument, match="at least 64 tokens, at most 256"):
                opened(made.taught(), context=wrong)

    def test_relative_positions_have_no_end_whatever_length_a_config_names(self, tmp_path: Path) -> None:
        """FLAN-T5's has `n_positions`: 512, and FilCo trains and asks it with 1,024 tokens."""
        shutil.copytree(made.t5(), tmp_path / "t5")
        config = tmp_path / "t5" / "config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"n_positions": 64}))
        done = reply(request("One, " * 40), opened(tmp_path / "t5"))
        assert (done.usage.input_tokens or 0) > 64
        opened(tmp_path / "t5", context=1024)

    def test_a_reply_without_any_bound_ends_all_the_same(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(huggingface, "ENDLESS", 30)
        done = reply(request("One,", max_tokens=None), engine(made.t5))
        assert (done.usage.output_tokens, done.finish_reason) == (30, "length")

    def test_a_chat_template_and_raw_text(self, tmp_path: Path) -> None:
        folder = chatty(tmp_path / "chatty")
        chat, raw = opened(folder), opened(folder, endpoint="completions")
        assert chat.count_tokens("One,") > raw.count_tokens("One,") == engine().count_tokens("One,")
        turns = [["system", "Count."], ["user", "Go on."]]
        read = prompt_ids(open_tokenizer(folder), turns)
        assert reply(request("Go on.", system="Count."), chat).usage.input_tokens == len(read)
        assert text_of(reply(request("Monday, Tuesday,"), raw)).startswith(" Wednesday")

    def test_thinking_has_room_of_its_own_and_stays_apart(self, tmp_path: Path) -> None:
        folder = chatty(tmp_path / "chatty")
        profile = profile_for("qwen3-8b")
        thinker = opened(folder, profile=profile)
        plain = opened(folder, profile=dataclasses.replace(profile, effort="off"))
        asked = request("Go on.", max_tokens=3, stop=(",",))
        assert (thinker.reply_cap(asked), plain.reply_cap(asked)) == (4099, 3)
        assert thinker.count_tokens("Go on.") == plain.count_tokens("Go on.")
        done = reply(asked, thinker)  # it thinks until the context ends, where a stop string ends nothing
        assert (done.usage.output_tokens or 0) > 10

    def test_what_it_cannot_do_is_refused(self) -> None:
        tool = lm15.FunctionTool(name="f", description="", parameters={"type": "object", "properties": {}})
        with pytest.raises(lm15.UnsupportedFeatureError, match="no tools"):
            reply(lm15.Request(model="m", messages=(lm15.Message.user("Hi"),), tools=(tool,), config=lm15.Config()))
        schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
        with pytest.raises(lm15.UnsupportedFeatureError, match="holds no reply to a schema"):
            reply(request("Hi", response_format=schema))


class TestEndings:
    def test_a_cancelled_call_makes_room(self) -> None:
        endless, long = opened(made.llama(positions=65_536)), request("One", max_tokens=60_000)

        async def main() -> lm15.Response:
            calls = [asyncio.create_task(endless.complete(long)) for _ in range(9)]
            while endless._writer.loaded is None:
                await asyncio.sleep(0.01)
            for call in calls:
                call.cancel()
            return await asyncio.wait_for(endless.complete(request("One, two,", max_tokens=4)), 60)

        assert asyncio.run(main()).usage.output_tokens == 4

    def test_a_deadline_ends_a_call(self) -> None:
        with pytest.raises(lm15.TimeoutError, match="no whole reply within the deadline of 1e-06 s"):
            reply(request("One", max_tokens=200), opened(made.taught(), deadline=1e-6))

    @pytest.mark.parametrize("kind", [partial(made.llama, positions=65_536), made.t5])
    def test_closing_ends_what_waits(self, kind: Callable[[], Path]) -> None:
        async def main() -> None:
            closing = opened(kind())
            calls = [asyncio.create_task(closing.complete(request("One", max_tokens=60_000))) for _ in range(12)]
            await asyncio.sleep(0)
            closing.close()
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(each) for each in done} == {WorkFailed}
            with pytest.raises(WorkFailed, match="was closed while it was in use"):
                await closing.complete(request("One"))

        asyncio.run(main())

    def test_unloading_frees_the_weights_and_the_next_call_opens_them(self) -> None:
        mine = opened(made.taught())
        before = text_of(reply(request("One, two,"), mine))
        mine.unload()
        assert mine._writer.loaded is None
        assert text_of(reply(request("One, two,"), mine)) == before

    def test_without_torch_it_is_one_line_whatever_was_asked_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torch", None)
        with pytest.raises(MissingExtra, match="torch"):
            reply(request("One,"), opened(made.taught(), threads=1))

    def test_a_fault_of_torch_is_the_calls_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        mine = opened(made.taught())
        reply(request("One,"), mine)

        def full(*_: object, **__: object) -> None:
            raise RuntimeError("no memory")

        with monkeypatch.context() as patched:
            patched.setattr(mine._writer.loaded.model, "generate", full)  # type: ignore[union-attr]
            with pytest.raises(lm15.ServerError, match="torch could not compute this reply: no memory"):
                reply(request("One,"), mine)
        assert text_of(reply(request("One, two,", max_tokens=4), mine)) == " three"

    @pytest.mark.parametrize("kind", [made.taught, made.t5])
    def test_where_memory_runs_out_fewer_are_written_at_a_time(self, kind: Callable[[], Path]) -> None:
        """Every reply is the one that it would be, drawn ones too: what was begun begins anew."""
        asked = [request(text, temperature=temperature) for text in PROMPTS for temperature in (0.0, 0.9)]
        alone = [text_of(reply(each, engine(kind))) for each in asked]
        many = opened(kind(), batch_size=8)
        reply(asked[0], many)
        with full_above(3, many):
            assert replies(asked, many) == alone
        assert replies(asked, many) == alone

    def test_a_prompt_that_does_not_fit_alone_is_that_calls_own_fault(self) -> None:
        many = opened(made.taught(), batch_size=8)
        alone = [text_of(reply(request(text), many)) for text in PROMPTS]
        with full_above(8, many, tokens=100):
            long = "One, two, three, four, five, " * 8

            async def main() -> list[lm15.Response | BaseException]:
                asked = [request(text) for text in (*PROMPTS[:2], long, *PROMPTS[2:])]
                return await asyncio.gather(*(many.complete(each) for each in asked), return_exceptions=True)

            found = asyncio.run(main())
        assert isinstance(failed := found.pop(2), lm15.ServerError)
        assert "out of memory" in str(failed)
        assert [text_of(each) for each in found if isinstance(each, lm15.Response)] == alone
        assert many._writer.size == 8  # type: ignore[union-attr]

    def test_a_process_that_ends_in_the_middle_of_a_reply_ends_well(self) -> None:
        """Its thread would be inside torch when the interpreter is gone, which aborts the process."""
        code = f"""
import threading, time
from blendfilter import connect
lm = connect("hf/{made.llama(positions=65_536)}?device=cpu", cache=False)
threading.Thread(target=lm, args=("One,",), kwargs=dict(max_tokens=60_000), daemon=True).start()
while lm.inner._writer.loaded is None:
    time.sleep(0.01)
"""
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)
        assert (done.returncode, "terminate called" in done.stderr) == (0, False), done.stderr

    def test_a_forked_process_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own = os.getpid()
        monkeypatch.setattr(os, "getpid", lambda: own + 1)
        with pytest.raises(BadArgument, match="does not survive a fork"):
            reply(request("One,"))


class TestConnecting:
    def test_a_name_with_its_settings(self) -> None:
        folder = made.taught()
        lm = connect(f"hf/{folder}?dtype=bfloat16&device=cpu&batch_size=2", context=128, threads=1, cache=False)
        assert isinstance(lm.inner, HuggingFaceEngine)
        assert (lm.name, lm.address, lm.inner.batch_size) == ("taught", "this process", 2)
        assert lm.identity["options"]["weights"] == fingerprint(folder)
        assert (lm.identity["options"]["dtype"], lm.identity["options"]["context"]) == ("bfloat16", 128)
        assert str(folder.parent) not in json.dumps(lm.identity)
        assert isinstance(lm("One, two,", max_tokens=3)[0], str)
        again = dspy.BaseLM.load_state(json.loads(json.dumps(lm.dump_state())), allow_custom_lm_class=True)
        assert isinstance(again, ConnectedLM)
        assert (again.identity, again.dump_state()) == (lm.identity, lm.dump_state())

    def test_a_gguf_file_is_another_model_by_llama_cpp(self) -> None:
        pytest.importorskip("xllamacpp", reason="needs the extra [local]")
        by_both = [connect(name, context=1024, cache=False) for name in ("local", "hf/local")]
        weights = {lm.identity["options"]["weights"] for lm in by_both}
        assert len(weights) == 1
        assert by_both[0].identity != by_both[1].identity

    def test_the_device_and_the_batch_are_no_part_of_it(self) -> None:
        plain = connect(f"hf/{made.taught()}", cache=False)
        assert connect(f"hf/{made.taught()}?device=cpu&batch_size=3", cache=False).identity == plain.identity
        assert connect(f"hf/{made.gpt2()}", cache=False).identity != plain.identity

    @pytest.mark.parametrize(
        ("name", "error", "line"),
        [
            ("hf/nowhere", MissingFile, "no model 'nowhere'"),
            ("hf/m?dype=float32", UnknownName, "Did you mean 'dtype'"),
            ("hf/m?batch_size=many", BadArgument, "batch_size is 'many'"),
            ("hf/m?dtype=int4", BadArgument, "no dtype 'int4'"),
            ("hf/~nobody-of-that-name/m", MissingFile, "no model '~nobody-of-that-name/m'"),
            (f"hf/{'m' * 300}", MissingFile, "File name too long"),
        ],
    )
    def test_bad_names_are_one_line(self, name: str, error: type[Exception], line: str, tmp_path: Path) -> None:
        with pytest.raises(error, match=line):
            connect(name, journal=tmp_path / "run")
        assert not (tmp_path / "run").exists()

    def test_what_writes_nothing_is_refused_before_anything_is_made(self, tmp_path: Path) -> None:
        folder = tmp_path / "classifier"
        shutil.copytree(made.gpt2(), folder)
        known = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(known | {"architectures": ["GPT2ForSequenceClassification"]}))
        with pytest.raises(BadData, match="writes nothing"):
            connect(f"hf/{folder}", journal=tmp_path / "run")
        assert not (tmp_path / "run").exists()
        with pytest.raises(BadArgument, match="holds no reply to a schema"):
            connect(f"hf/{made.gpt2()}", json_schema=True)

    def test_what_was_trained_here_has_learned_its_form(self, tmp_path: Path) -> None:
        """A very small model is shown demonstrations of every step, but not one that was trained without them."""
        folder = tmp_path / "SmolLM2-135M-mine"
        shutil.copytree(made.gpt2(), folder)
        assert connect(f"hf/{folder}", cache=False).profile.small
        (folder / "recipe.json").write_text('{"format": 1}')
        assert not connect(f"hf/{folder}", cache=False).profile.small

    def test_names(self, tmp_path: Path) -> None:
        assert could_be("hf/m?dtype=int8", "m")  # a run of 0.2.0 replays without the model
        assert settings_in("hf/a/b?device=cuda:1") == ("hf/a/b", {"device": "cuda:1"})
        assert (name_of("hf/Qwen/Qwen3-8B"), name_of("hf/./runs/m"), name_of(f"hf/{tmp_path}")) == (
            "Qwen/Qwen3-8B", "m", tmp_path.name,
        )  # fmt: skip

    def test_a_scorer_takes_it(self) -> None:
        lm = connect(f"hf/{made.taught()}?device=cpu", cache=False)
        pair = ("One, two,", " three")
        assert scorer(lm).score([pair]) == scorer(f"hf/{made.taught()}?device=cpu").score([pair])

    def test_calls_are_journaled_and_replayed_without_opening_the_weights(self, tmp_path: Path) -> None:
        how: dict[str, Any] = {"temperature": 1.0, "max_tokens": 6, "threads": 1}
        lm = connect(f"hf/{made.taught()}", journal=tmp_path / "run", **how)
        first = lm("Name a colour.", n=3)
        assert len(set(first)) > 1  # three samples, not one thrice
        lm.journal.close()  # type: ignore[union-attr]
        assert len(journaled(tmp_path / "run")) == 3
        replayed = connect(f"hf/{made.taught()}", journal=tmp_path / "run", mode="replay", **how)
        assert replayed("Name a colour.", n=3) == first
        assert replayed.inner._writer.loaded is None  # type: ignore[attr-defined]

    def test_a_run_of_two_models_is_planned_and_replays_when_they_are_gone(self, blendfilter: Command) -> None:
        for name in ("writer", "filter"):
            shutil.copytree(made.llama(positions=4096), Path("models") / name)
        words = ("eval", "hotpotqa", "--data", "sample", "--corpus", "sample", "--limit", 2, "-k", 2, "--run", "run",
                 "--method", "direct-retrieval", "--filter", "filco", "--max-bad-replies", 1, "--threads", 1,
                 "--lm", "hf/models/writer", "--filter-lm", "hf/models/filter?batch_size=2")  # fmt: skip
        planned = blendfilter(*words, "--plan")
        assert planned.code == 0, planned.err
        done = blendfilter(*words)
        assert done.code == 0, done.err
        before = stable(Path("run"))
        assert {call["model"] for call in journaled(Path("run"))} == {"writer", "filter"}
        shutil.rmtree("models")
        done = blendfilter(*words, "--replay")
        assert (done.code, "no model" in done.err) == (0, True), done.err
        assert stable(Path("run")) == before


@pytest.mark.parametrize("how", [{}, {"temperature": 1.0}, {"logprobs": 1}])
@pytest.mark.parametrize("kind", [made.taught, made.t5])
def test_a_reply_of_which_a_token_is_no_number_is_an_error_and_the_others_stay(
    kind: Callable[[], Path], how: dict[str, Any]
) -> None:
    """As of numbers too large for 16 bits: they come of some texts and not of others."""
    by = opened(kind())
    asked = [request(text, max_tokens=6, **how) for text in PROMPTS[:3]]
    expected = replies(asked, by)
    model = by._writer.loaded.model  # type: ignore[union-attr]

    def overflow(_: object, __: object, logits: Any) -> Any:
        if logits.shape[0] > 1:  # of the second reply, once there are several
            logits[1, -1, 7] = float("nan")
        return logits

    async def main() -> list[Any]:
        return await asyncio.gather(*map(by.complete, asked), return_exceptions=True)

    hook = model.get_output_embeddings().register_forward_hook(overflow)
    try:
        first, second, third = asyncio.run(main())
    finally:
        hook.remove()
        by.close()
    assert isinstance(second, lm15.InvalidRequestError)
    assert "computes NaN" in str(second)
    assert [text_of(first), text_of(third)] == [expected[0], expected[2]]
