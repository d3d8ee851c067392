"""A key in the environment, in an argument, in an address: then everything a run leaves behind is searched for it."""

from __future__ import annotations

import asyncio
import base64
import copy
import dataclasses
import html
import json
import logging
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import dspy
import pytest
from batch_server import batching
from dspy import lm15
from http_server import Answer, Request, answering
from hypothesis import given
from hypothesis import strategies as st
from index_server import served

from blendfilter import Batch, Direct, Run, resources, scorer, secrets
from blendfilter.errors import BadArgument, BlendFilterError
from blendfilter.evaluation.runner import evaluate
from blendfilter.lm.attempts import Retry
from blendfilter.lm.batches import INPUT, OUTPUT
from blendfilter.lm.model import ConnectedLM, connect
from blendfilter.lm.probing import probe
from blendfilter.lm.streamed import ReplyListener
from blendfilter.lm.tokenisers import tokeniser_for
from blendfilter.modules.blendfilter import BlendFilter
from blendfilter.retrieval.base import Retriever
from blendfilter.retrieval.bm25 import BM25
from blendfilter.retrieval.corpus import read_corpus
from blendfilter.retrieval.indexes import open_index
from blendfilter.tasks.loading import load

KEY = "zk-Quite.Secret/0123+456=789"
"""Not of a shape that gives it away, and with characters that addresses and JSON write otherwise."""
TOKEN = "0f9e-Another.Secret"


def forms(secret: str) -> list[str]:
    """How it may be written, apart from how the package looks for it."""
    around = ("", "Bearer ", "Basic me:", "me:")
    encoded = [base64.b64encode(f"{before}{secret}".encode()).decode() for before in around]
    return [secret, quote(secret), quote(secret, safe=""), *encoded, secret[4:-4], encoded[0][8:-8]]


def found(text: str) -> list[str]:
    return [form for secret in (KEY, TOKEN) for form in forms(secret) if form in text]


def echo(auth: str) -> str:
    """What a careless server says: the header, as it came and encoded."""
    return f"{auth} {base64.b64encode(auth.encode()).decode()} {quote(KEY, safe='')} {KEY} {forms(KEY)[6]}"


MODES = ("well", "400", "401", "429", "500", "page", "late", "reply")


class Server:
    """A model server that echoes the header it was sent, in whatever way its `mode` says."""

    url = ""

    def __init__(self, mode: str) -> None:
        self.mode, self.seen = mode, list[str]()

    def answer(self, request: Request) -> Answer:
        auth, mode = request.headers.get("authorization", ""), self.mode
        self.seen.append(auth)
        result = echo(auth) if mode == "reply" else "So the answer is Tolm."
        status, body = 200, json.dumps({"choices": [{"message": {"content": result}, "finish_reason": "stop"}]})
        if mode in ("400", "401", "429"):
            status, body = int(mode), json.dumps({"error": {"message": f"no: {echo(auth)}", "code": echo(auth)}})
        elif mode == "page":
            status, body = 403, f"<html><body>Forbidden: {echo(auth)}</body></html>"
        elif mode == "500":
            status, body = 500, f"panic: {echo(auth)}"
        elif mode == "late":
            body = json.dumps({"error": {"message": echo(auth)}})
        return Answer(status, body.encode(), {"x-echo": echo(auth), "retry-after": "0"})


@contextmanager
def careless(mode: str) -> Iterator[Server]:
    server = Server(mode)
    with answering(server.answer) as url:
        server.url = f"{url}/v1"
        yield server


class Kept(logging.Handler):
    """Every record of every logger, as text: its message, arguments and traceback."""

    def __init__(self) -> None:
        super().__init__(logging.NOTSET)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info else ""
        self.lines.append(f"{record.name} {record.getMessage()} {record.args!r} {error}")


@pytest.fixture
def logs() -> Iterator[Kept]:
    """All loggers at DEBUG."""
    kept, root = Kept(), logging.getLogger()
    names = ("httpx", "httpcore", "openai", "dspy", "LiteLLM", "blendfilter", "asyncio")
    before = {name: logging.getLogger(name).level for name in names} | {"": root.level}
    for name in before:
        logging.getLogger(name or None).setLevel(logging.DEBUG)
    root.addHandler(kept)
    yield kept
    root.removeHandler(kept)
    for name, level in before.items():
        logging.getLogger(name or None).setLevel(level)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """No secret of another test is known."""
    monkeypatch.setattr(secrets, "_known", frozenset())


@pytest.fixture(scope="module")
def index() -> BM25:
    """The sample world's passages."""
    return BM25.build(read_corpus(resources.sample("corpus.jsonl")))


def hasty(lm: ConnectedLM) -> ConnectedLM:
    """The same, tried once more at the most and without a wait."""
    lm.terms = dataclasses.replace(lm.terms, retry=Retry(attempts=2, wait_first=0.001, wait_max=0.001))
    return lm.with_journal(None)


def model(how: str, url: str, monkeypatch: pytest.MonkeyPatch) -> ConnectedLM:
    if how == "argument":
        return connect("m", api_base=url, api_key=KEY)
    if how == "login":
        return connect("m", api_base=url.replace("://", f"://me:{quote(KEY, safe='')}@"))
    if how == "own":
        return connect(dspy.LM("openai/m", api_base=url, api_key=KEY))
    monkeypatch.setenv({"own environment": "OPENAI_API_KEY"}.get(how, how), KEY)
    if how == "own environment":
        return connect(dspy.LM("openai/m", api_base=url))
    return connect("openai/m" if how == "OPENAI_API_KEY" else "m", api_base=url)


HOWS = ("argument", "login", "own", "own environment", "OPENAI_API_KEY", "BLENDFILTER_API_KEY")


def left_by(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file()}


def leaks(folder: Path, *logs: str) -> list[str]:
    """The files of a folder, and the beginnings of the lines, in which a secret is found."""
    return [
        *(name for name, text in left_by(folder).items() if found(text)),
        *(line[:200] for line in logs if found(line)),
    ]


def written_of(error: BaseException) -> str:
    """The error with all its causes, as `logging` and debuggers show them, with the local variables of each frame."""
    variables: dict[int, object] = {}  # by identity: most frames of a method hold the method
    chain = [error]
    for each in chain:
        causes = (each.__cause__, each.__context__, *getattr(each, "exceptions", ()))
        chain += [cause for cause in causes if cause is not None and cause not in chain]
        for frame, _ in traceback.walk_tb(each.__traceback__):
            if frame.f_code.co_filename != __file__:  # this test knows the key
                variables |= {id(value): value for value in frame.f_locals.values()}
    chained = [f"{each!r}{vars(each)}" for each in chain]
    return "".join([*traceback.format_exception(error), *map(repr, variables.values()), *chained])


@pytest.mark.parametrize(
    ("how", "mode"),
    [(how, mode) for how in HOWS for mode in (MODES if how in ("argument", "own") else ("400",))],
)
def test_no_key_is_left_by_a_run(
    how: str, mode: str, index: BM25, tmp_path: Path, logs: Kept, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    method, questions = BlendFilter(index, k=2), load("hotpotqa", "sample", limit=1)
    with careless(mode) as server:
        lm = hasty(model(how, server.url, monkeypatch))
        error = ""
        try:
            done = evaluate(method, questions, lm=lm, run=tmp_path / "run", progress=False)
            assert done.errors == 0 or mode != "well"
        except BlendFilterError as refused:
            error = written_of(refused)
        with dspy.context(lm=lm):
            try:
                method(question="Which?")
            except BlendFilterError as failed:
                error += written_of(failed)
            try:  # on a loop of the user's own, which has connections of its own
                asyncio.run(lm.acall("Which?"))
            except BlendFilterError as failed:
                error += written_of(failed)
    assert server.seen, "the server was never asked"
    sent = [base64.b64decode(auth[6:]).decode() if auth.startswith("Basic ") else auth for auth in server.seen]
    assert set(sent) == {f"me:{KEY}" if how == "login" else f"Bearer {KEY}"}
    assert found(error) == []
    assert leaks(tmp_path, *logs.lines, *capsys.readouterr()) == []


@pytest.mark.parametrize("how", HOWS)
def test_no_key_is_shown_by_what_holds_it(
    how: str, index: BM25, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with careless("well") as server:
        lm = hasty(model(how, server.url, monkeypatch))
        lm("hello")
        method = BlendFilter(index, k=2)
        method.set_lm(lm)
        method.save(tmp_path / "program.json")
        visible = [lm, lm.inner, lm.copy(), copy.deepcopy(lm), lm.history, lm.dump_state(), lm.identity, lm.address,
                 method.dump_state(), (tmp_path / "program.json").read_text(), vars(lm)]  # fmt: skip
    for each in visible:
        assert found(f"{each!r} {each}") == [], type(each)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["400", "reply"])
def test_no_key_is_left_by_the_command_line(mode: str, tmp_path: Path) -> None:
    with careless(mode) as server:
        words = ["--debug", "eval", "hotpotqa", "--data", "sample", "--corpus", "sample", "--limit", "1", "--lm", "m",
                 "--api-base", server.url, "--run", str(tmp_path / "run"), "--method", "direct"]  # fmt: skip
        ended = subprocess.run(
            [sys.executable, "-m", "blendfilter.cli", *words], capture_output=True, text=True, timeout=600,
            env={**os.environ, "BLENDFILTER_API_KEY": KEY, "BLENDFILTER_CACHE": str(tmp_path / "cache"),
                 "OPENAI_LOG": "debug", "BLENDFILTER_INDEX_TOKEN": TOKEN},
            check=False,
        )  # fmt: skip
    assert server.seen, ended.stderr
    assert ended.returncode == (mode != "reply"), ended.stderr
    assert ("Traceback" in ended.stderr) is (mode != "reply")
    assert found(ended.stdout + ended.stderr) == []
    assert (tmp_path / "run" / "report.html").is_file() is (mode == "reply"), "a run that failed has no score to show"
    Run(tmp_path / "run").html()
    assert leaks(tmp_path / "run") == []


def test_no_token_of_an_index_is_left_by_a_run(
    index: Retriever, tmp_path: Path, logs: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BLENDFILTER_INDEX_TOKEN", TOKEN)
    with served(index, token=TOKEN) as server:
        remote = open_index(server.url)
        questions = load("hotpotqa", "sample", limit=1)
        done = evaluate(BlendFilter(remote, k=2), questions, lm="offline", run=tmp_path / "run", progress=False)
    assert done.errors == 0
    assert leaks(tmp_path, *logs.lines, repr(remote)) == []


def test_what_a_users_own_code_raises_is_kept_without_keys(tmp_path: Path) -> None:
    class Own(dspy.Module):
        def forward(self, question: str) -> dspy.Prediction:
            raise RuntimeError(f"401 for https://a.example/v1?key={KEY}")

    lm = connect("m", api_base="http://127.0.0.1:9/v1", api_key=KEY)
    with pytest.raises(BlendFilterError) as failed:
        evaluate(Own(), load("qa", "sample", limit=2), lm=lm, run=tmp_path / "run", progress=False)
    assert found(str(failed.value)) == []
    assert leaks(tmp_path) == []
    assert "?key=[key]" in (tmp_path / "run/predictions.jsonl").read_text()


# --- every path beside plain calls, with a server that echoes


@contextmanager
def echoing(answer: Callable[[str, dict[str, Any]], tuple[int, Any]]) -> Iterator[str]:
    """The address of a server that writes the key it was sent into every header of what `answer` gives."""

    def answered(request: Request) -> Answer:
        status, content = answer(request.path, request.body)
        auth = echo(request.headers.get("authorization", ""))
        where = f"/v1{request.path}?key={quote(KEY, safe='')}"
        return Answer(status, content, {"retry-after": auth, "set-cookie": f"{KEY}=1", "location": where})

    with answering(answered) as url:
        yield f"{url}/v1"


def reply(text: str = "Tolm", **more: Any) -> dict[str, Any]:
    """A good reply whose other fields echo."""
    said = echo(f"Bearer {KEY}")
    tokens = [{"token": KEY[at : at + 3], "logprob": -1.0, "top_logprobs": []} for at in range(0, len(KEY), 3)]
    choice = {"message": {"role": said, "content": text, "reasoning_content": said}, "finish_reason": "stop",
              "text": text, "logprobs": {"content": tokens}, **more}  # fmt: skip
    usage = {"prompt_tokens": KEY, "completion_tokens": said, "cost": said, "cached": {KEY: said}}
    return {"id": said, "model": said, "object": said, "system_fingerprint": KEY, "choices": [choice], "usage": usage}


def asked(url: str, folder: Path, **more: Any) -> str:
    """What a run and a call say, with a key that the server echoes."""
    lm = hasty(connect("m", api_base=url, api_key=KEY, **more))
    try:
        done = evaluate(Direct(), load("qa", "sample", limit=2), lm=lm, run=folder / "run", progress=False)
        done.html()
        return f"{done.report()}{done.rows}{lm.history}{lm('hello')}{lm.inspect_history()}"
    except BlendFilterError as refused:
        return written_of(refused)


def in_fields(folder: Path) -> str:
    with echoing(lambda path, body: (200, reply())) as url:
        return asked(url, folder)


def in_the_way_a_reply_ends(folder: Path) -> str:
    with echoing(lambda path, body: (200, reply(finish_reason=KEY))) as url:
        return asked(url, folder)


def in_redirects(folder: Path) -> str:
    with echoing(lambda path, body: (307, b"")) as url:
        return asked(url, folder)


def in_headers_of_a_refusal(folder: Path) -> str:
    with echoing(lambda path, body: (429, {"error": KEY})) as url:
        return asked(url, folder)


def in_a_stream(folder: Path) -> str:
    """In pieces, none of which is the key."""

    def answer(path: str, body: dict[str, Any]) -> tuple[int, bytes]:
        said = f"[[ ## answer ## ]]\nIt is {KEY}, as was said.\n\n[[ ## completed ## ]]"
        deltas = [{"choices": [{"delta": {"content": said[at : at + 5]}}]} for at in range(0, len(said), 5)]
        events = [*map(json.dumps, deltas), json.dumps({"choices": [{"delta": {}, "finish_reason": "stop"}]}), "[DONE]"]
        return 200, "".join(f"data: {event}\n\n" for event in events).encode()

    async def follow(program: Any) -> list[Any]:
        listeners = [dspy.streaming.StreamListener("answer")]
        return [each async for each in dspy.streamify(program, stream_listeners=listeners)(question="Which?")]

    with echoing(answer) as url:
        lm = hasty(connect("m", api_base=url, api_key=KEY))
        with dspy.context(lm=lm, adapter=dspy.ChatAdapter()):
            pieces = asyncio.run(follow(dspy.Predict("question -> answer")))
    streamed = "".join(piece.chunk for piece in pieces if isinstance(piece, dspy.streaming.StreamResponse))
    assert streamed.startswith("It is"), pieces
    return f"{streamed}{pieces}"


def in_what_a_server_can_do(folder: Path) -> str:
    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        return 200, {"data": [{"id": KEY}], "tokens": KEY, "count": KEY} if "chat" not in path else reply(KEY)

    with echoing(answer) as url:
        lm = hasty(connect("m", api_base=url, api_key=KEY))
        return f"{probe(lm)}{tokeniser_for(lm, ask_server=True)}"


def in_scores(folder: Path) -> str:
    with echoing(lambda path, body: (200, reply(KEY))) as url:
        scores = scorer("m", api_base=url, api_key=KEY, journal=folder / "scores")
        with pytest.raises(BlendFilterError) as refused:
            scores.score([("The old man", " walked")])
    return written_of(refused.value)


def in_verdicts(folder: Path) -> str:
    with echoing(lambda path, body: (200, reply(f"CORRECT {KEY}"))) as url:
        lm = hasty(connect("m", api_base=url, api_key=KEY))
        done = evaluate(Direct(), load("qa", "sample", limit=2), lm="offline", run=folder / "run", progress=False)
        scored = done.rescore("llm-judge", lm=lm)
    return f"{scored}{scored.rows}"


def in_an_index(folder: Path) -> str:
    """Its description stands in run.json."""
    passages = [{"id": TOKEN, "title": TOKEN, "text": f"Bearer {TOKEN}", "score": 1.0, "metadata": {TOKEN: TOKEN}}]

    def answer(path: str, body: dict[str, Any]) -> tuple[int, Any]:
        about = {"fingerprint": "0" * 16, "passages": 9, "server": "blendfilter", "version": TOKEN}
        found = {"fingerprint": "0" * 16, "results": [{"passages": passages}] * len(body.get("queries", ()))}
        return 200, found if "search" in path else {**about, "index": {"kind": TOKEN, "settings": {TOKEN: TOKEN}}}

    secrets.know(KEY)  # which the server echoes besides
    with echoing(answer) as url:
        remote = open_index(url.removesuffix("/v1"), token=TOKEN)
        questions = load("qa", "sample", limit=2)
        done = evaluate(Direct(remote, k=1), questions, lm="offline", run=folder / "run", progress=False)
    return f"{done.rows}{remote.info()}{remote!r}"


def batched(folder: Path, made: Mapping[str, Any] = {}, **patched: Any) -> str:
    """What a run in batches says, and says when it is repeated; `made` is over what the server says of a batch."""
    said = ""
    with batching() as server:
        create = server.create

        def created(body: dict[str, Any]) -> dict[str, Any]:
            batch = create(body)
            batch |= made
            server.batches[batch["id"]] = batch
            return batch

        vars(server).update({"create": created, **patched})
        for _ in range(2):
            lm = connect("m", api_base=server.url, api_key=KEY)
            batch = Batch(poll=0.02, fewest=1)
            try:
                done = evaluate(Direct(), load("qa", "sample", limit=2), lm=lm, run=folder / "run", batch=batch,
                                progress=False)  # fmt: skip
                said += f"{done.rows}{done.errors}"
            except BlendFilterError as refused:
                said += written_of(refused)
    assert server.created
    return said


def in_answers_of_batches(folder: Path) -> str:
    return batched(folder, replied=lambda path, body: (200, reply(f"Tolm {KEY}")))


def in_faults_of_batches(folder: Path) -> str:
    error = {"message": f"no: {echo(KEY)}", "code": KEY, KEY: KEY}
    return batched(folder, replied=lambda path, body: (400, {"error": error}))


def in_batches_that_are_refused(folder: Path) -> str:
    errors = [{"code": KEY, "message": f"no batch for {KEY}", "param": KEY}]
    return batched(folder, {"status": "failed", "errors": {"object": "list", "data": errors}})


def in_ids_of_batches(folder: Path) -> str:
    secrets.know(TOKEN)
    return batched(folder, {"id": f"batch_{KEY.replace('/', '_')}_{TOKEN}"})


def in_a_file_of_answers(folder: Path) -> str:
    """The file is the user's and stays as it is."""
    files, run = folder.parent / f"{folder.name}-files", folder / "run"
    said = ""
    for _ in range(2):
        lm, batch = connect("m", api_base="http://batch.invalid/v1", api_key=KEY), Batch(files)
        try:
            evaluate(Direct(), load("qa", "sample", limit=2), lm=lm, run=run, batch=batch, progress=False)
        except BlendFilterError as waits:
            said += str(waits)
        for path in files.glob(f"*{INPUT}"):
            assert found(path.read_text()) == []
            ids = [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]
            rows = [{"custom_id": id, "response": {"status_code": 200, "body": reply(KEY)}} for id in ids]
            path.with_name(path.name.replace(INPUT, OUTPUT)).write_text("\n".join(map(json.dumps, rows)))
    assert (run / "predictions.jsonl").exists()
    return said


PATHS = (
    in_fields, in_the_way_a_reply_ends, in_redirects, in_headers_of_a_refusal, in_a_stream, in_what_a_server_can_do,
    in_scores, in_verdicts, in_an_index, in_answers_of_batches, in_faults_of_batches, in_batches_that_are_refused,
    in_ids_of_batches, in_a_file_of_answers,
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_what_a_server_echoes_is_neither_kept_nor_shown(
    path: Callable[[Path], str], tmp_path: Path, logs: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    said = path(tmp_path)
    assert said
    assert found(said) == []
    assert leaks(tmp_path, *logs.lines, *capsys.readouterr()) == []


@given(st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=secrets.SHORTEST), st.text(), st.text())
def test_a_secret_is_hidden_wherever_it_stands(secret: str, before: str, after: str) -> None:
    secrets._known = frozenset()
    secrets.know(secret)
    for written in (secret, quote(secret), quote(secret, safe="")):
        assert secrets.hidden(f"\0{written}\0") == "\0[key]\0"
    wrapped = base64.b64encode(f"{before}{secret}{after}".encode()).decode()
    assert "[key]" in secrets.hidden(wrapped)
    assert len(secrets.hidden(wrapped)) <= len(wrapped)


@pytest.mark.parametrize("secret", ["none", "EMPTY", "ollama", "", None, "k", "abc"])
def test_a_placeholder_and_what_is_too_short_to_be_told_from_a_word_are_left_in_replies(secret: str | None) -> None:
    secrets.know(secret)
    text = f"{secret} of a k abc ollama none EMPTY"
    assert secrets.hidden(text) == text


@pytest.mark.parametrize("secret", ["ab1c", "pw-9", "s3cret!", 'a"b/c', "p<&>w"])
@pytest.mark.parametrize(
    "written",
    [
        str,
        quote,
        lambda secret: quote(secret, safe="").lower(),
        lambda secret: json.dumps(secret)[1:-1],
        lambda secret: json.dumps(secret)[1:-1].replace("/", r"\/").replace("<", r"\u003c").replace("&", r"\u0026")
        .replace(">", r"\u003e"),
        html.escape,
        lambda secret: base64.b64encode(secret.encode()).decode(),
        lambda secret: base64.b64encode(f"Bearer {secret}".encode()).decode(),
    ],
)  # fmt: skip
def test_a_short_secret_is_hidden_where_it_stands_alone_however_it_is_written(
    secret: str, written: Callable[[str], str]
) -> None:
    secrets.know(secret)
    form = written(secret)
    assert form.rstrip("=") not in secrets.hidden(f"the key '{form}' is wrong")
    assert secrets.hidden(f"x{secret}x stays") == f"x{secret}x stays"


def test_a_key_of_any_length_is_hidden_in_errors(tmp_path: Path) -> None:
    with careless("400") as server:
        lm = hasty(connect("m", api_base=server.url, api_key="q7", journal=tmp_path / "run"))
        with pytest.raises(BlendFilterError) as refused:
            lm("hello")
    assert "q7" not in f"{refused.value}".split()
    assert secrets.hidden("Incorrect key: q7.", "q7") == "Incorrect key: [key]."


def test_a_word_is_left_in_replies_where_it_is_only_in_the_environment_and_hidden_where_it_was_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POSTGRES_PASSWORD", "postgres")
    monkeypatch.setenv("YEAR_TOKEN", "19451946")
    monkeypatch.setenv("OTHER_API_KEY", "quite-secret")
    monkeypatch.setenv("LONG_PASSWORD", "correcthorsebatterystaple")
    connect("m", api_base="http://127.0.0.1:9/v1", api_key="opensesame")
    secrets.know("postgres-key")
    text = "postgres in 19451946: quite-secret, correcthorsebatterystaple, postgres-key, opensesame"
    assert secrets.hidden(text) == "postgres in 19451946: [key], [key], [key], [key]"


@pytest.mark.parametrize("how", ["argument", "BLENDFILTER_API_KEY", "OPENAI_API_KEY"])
@pytest.mark.parametrize("wrong", [{"thinking": True, "reasoning": "off"}, {"endpoint": "talk"}, {"attempts": 0}])
def test_no_key_is_in_the_local_variables_of_a_refusal(
    how: str, wrong: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"api_key": KEY} if how == "argument" else {}
    if not given:
        monkeypatch.setenv(how, KEY)
    with pytest.raises(BadArgument) as refused:
        connect("openai/m", api_base=None if how == "OPENAI_API_KEY" else "http://127.0.0.1:9/v1", **given, **wrong)
    assert found(written_of(refused.value)) == []


def test_what_litellm_logs_holds_no_key(tmp_path: Path, logs: Kept) -> None:
    with careless("reply") as server:
        lm = hasty(connect(dspy.LM("openai/m", api_base=server.url, api_key=KEY, engine="litellm")))
        lm("hello")
    assert any(line.startswith("LiteLLM") and "[key]" in line for line in logs.lines)
    assert leaks(tmp_path, *logs.lines) == []


def journaled_reply(folder: Path, *parts: Any, **more: Any) -> str:
    """The journal of one call that an engine answers with `parts`, the key known."""

    class Engine:
        def complete(self, request: lm15.Request) -> lm15.Response:
            message, usage = lm15.Message(role="assistant", parts=parts), lm15.Usage(input_tokens=1, output_tokens=1)
            return lm15.Response(id=None, model="m", message=message, usage=usage, **more)

    secrets.know(KEY)
    connect(dspy.LM("mine/m", engine=Engine()), journal=folder)("hello")
    (text,) = left_by(folder).values()
    return text


def test_a_reply_that_is_kept_whole_holds_no_key(tmp_path: Path) -> None:
    call = lm15.ToolCallPart(id="1", name="look", input={"said": f"Bearer {KEY}"})
    text = journaled_reply(tmp_path, lm15.TextPart(KEY), call, finish_reason="tool_call")
    assert '"look"' in text
    assert found(text) == []


def test_a_reply_that_is_still_written_shows_no_part_of_a_key() -> None:
    sent: list[str] = []

    async def send(piece: str) -> None:
        sent.append(piece)

    async def arrive(text: str) -> None:
        listener = ReplyListener(send)
        for length in range(1, len(text) + 1):
            await listener.so_far(text[:length], [])
        await listener.whole(secrets.hidden(text))

    secrets.know(KEY)
    asyncio.run(arrive(f"It is zk {quote(KEY, safe='')}, as was said."))
    assert "".join(sent) == f"It is zk {KEY[:3]}"  # then it stops: the prediction has it all
    sent.clear()
    asyncio.run(arrive(f"It is zk-Quite.Other, {KEY[:2]}"))
    assert "".join(sent) == f"It is zk-Quite.Other, {KEY[:2]}"


@pytest.mark.parametrize("text", [KEY, "Tolm"])
def test_scores_do_not_spell_a_key(text: str, tmp_path: Path) -> None:
    pieces = tuple(lm15.TokenLogprob(token=KEY[i : i + 4], logprob=-1.0) for i in range(0, len(KEY), 4))
    kept = journaled_reply(tmp_path, lm15.TextPart(text), finish_reason="stop", logprobs=pieces)
    assert text.replace(KEY, "[key]") in kept
    assert pieces[1].token not in kept
