"""Calls in batches: gathered until nothing else can move, and answered by a provider's batches or through files.

A question asks in several steps, each of which needs the reply before it. In a batch all questions take a step
together: their calls are gathered until every question waits (no thread works for the run, and nothing is ready on its
loop), and go out in one file of the OpenAI batch format, a line a call, whose `custom_id` is the call's key in the
journal and a digest of what is asked (a call may ask twice: a parameter less, more room for thoughts). A run of
BlendFilter is about five rounds of batches, however many questions it has.

The rule for sending: what waits goes out once nothing else can move and it is at least a quarter of what is out
(`worth_sending`). So no batch waits for a straggler, a few calls that were asked again wait for the many on their way,
and those few hold nobody up. Where nothing is out and a provider would get fewer than `Batch.fewest`, they are asked
singly at once, at the full price: a round of its own for the last three calls would take as long as any.

With a provider a batch is uploaded (``/files``, ``/batches``), polled and fetched. The journal has a record of each,
written before it is uploaded, with its id once it has one: a run that was killed finds its batches again, by their name
among the server's where it had not learned the id, and pays nothing twice. With a folder of the user's own the files
are written there and the run stops (exit code 3); whatever answers them writes `NAME.output.jsonl` beside each
`NAME.input.jsonl`, and the same command goes on.

A line's answer is read as the reply to a single call is. Where that would be tried again (HTTP 500, no JSON), and where
the answer expired or is missing, the next batch asks for it again. A line that is refused (HTTP 400) fails its question
in this session, and the next session asks for it anew. A batch that is cancelled or refused at the provider ends the
session, and only the next one sends what it left. Answers are kept without the secrets that a provider may echo.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import json
import logging
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from blendfilter import aio, http
from blendfilter.dspy_surface import lm15
from blendfilter.errors import (
    BadArgument,
    BadData,
    BatchWritten,
    CannotWrite,
    ServerRefused,
    check_counts,
    copied,
)
from blendfilter.files import (
    is_torn,
    json_line,
    json_rows,
    opened,
    path_of,
    raw_lines,
    write_whole,
)
from blendfilter.journal import Journal, digest
from blendfilter.lm import faults
from blendfilter.lm.attempts import CallPolicy, Retry, Traffic
from blendfilter.lm.budget import tally
from blendfilter.lm.clients import ServerReply
from blendfilter.lm.openai import OpenAIEngine, servers_of
from blendfilter.secrets import hidden, hidden_in
from blendfilter.text import counted

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)
W = TypeVar("W")
T = TypeVar("T")

SHARE = 4
"""What waits is sent where it is at least the fourth part of what is out."""
RATE = 0.5
"""The share of its price that a provider asks in a batch."""
MOST_LINES, MOST_BYTES = 50_000, 190 << 20
"""Of one batch; OpenAI takes 50,000 lines and 200 MB."""
PATIENT = Retry(attempts=8, wait_first=0.0, deadline=90 * 86_400.0)
"""How a call in batches is tried again: in the next batch. Its time is the batch's."""
FORGIVING = 300.0
"""Seconds at the most between two looks at a server that did not answer the last one."""
INPUT, OUTPUT = ".input.jsonl", ".output.jsonl"
_OK = 200
_OVER = frozenset({"completed", "failed", "expired", "cancelled"})


@dataclass(frozen=True)
class Batch:
    """How the calls of a run are gathered and answered.

    Attributes:
        folder: where batch files are written for whatever answers them; None: the provider's own batches.
        window: the time in which the provider answers a batch (OpenAI: ``24h``).
        poll: seconds between two looks at the provider's batches.
        fewest: calls that are a batch of the provider's; fewer, where none is out, are asked singly.
    """

    folder: str | Path | None = None
    window: str = "24h"
    poll: float = 30.0
    fewest: int = 10

    def __post_init__(self) -> None:
        if not self.window.strip():
            raise BadArgument(
                f"a batch window of {self.window!r} (batch_window=): write it as the provider does, 24h"
            )
        if not self.poll > 0:
            raise BadArgument(f"poll must be a number of seconds above 0, got {self.poll!r}")
        check_counts(self, ("fewest",))

    @property
    def rate(self) -> float:
        """The share of the model's price that a call costs."""
        return RATE if self.folder is None else 1.0


def worth_sending(waiting: int, out: int) -> bool:
    """Whether so many calls that wait go out now, while so many others are on their way.

    >>> worth_sending(3, 0), worth_sending(3, 97), worth_sending(97, 3)
    (True, False, True)
    """
    return waiting > 0 and waiting * SHARE >= out


class Gatherer(Generic[W, T]):
    """Work that waits until nothing else can move, and is then done in one go.

    Args:
        quiet: called on the loop of `run` each time when nothing can move; it takes what it does out of `waiting`.

    Attributes:
        waiting: what waits, each with the future of its result.
        elsewhere: calls under way that are in no batch (a model of the filter's own): while there are, things move.
    """

    def __init__(self, quiet: Callable[[], None]) -> None:
        self.waiting: list[tuple[W, Future[T]]] = []
        self.elsewhere = 0
        self._quiet = quiet
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    async def join(self, work: W) -> T:
        """The result of `work`, once it was done with others; from whichever loop."""
        future: Future[T] = Future()
        self._loop.call_soon_threadsafe(self._add, work, future)
        return await asyncio.wrap_future(future)

    def touch(self) -> None:
        """Something moved."""
        self._changed.set()

    async def run(self) -> None:
        """Call `quiet` whenever nothing can move, for ever."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            is_quiet = await aio.until_quiet()
            if self.elsewhere or (not is_quiet and self._changed.is_set()):
                continue
            self._changed.clear()  # all that had moved by now is in `waiting`
            self.waiting = [
                (work, future) for work, future in self.waiting if not future.cancelled()
            ]
            self._quiet()

    def _add(self, work: W, future: Future[T]) -> None:
        self.waiting.append((work, future))
        self.touch()

    # A meter, for the calls of models that are in no batch.

    async def before(self, request: lm15.Request) -> None:
        """One more is under way."""
        self._loop.call_soon_threadsafe(self._count, 1)

    def after(
        self, ticket: None, response: lm15.Response | None, error: BaseException | None
    ) -> None:
        """It came back."""
        self._loop.call_soon_threadsafe(self._count, -1)

    def _count(self, more: int) -> None:
        self.elsewhere += more
        self.touch()


class Line(NamedTuple):
    """One request of a batch, to the server of its engine; `id` begins with the call's key in the journal."""

    id: str
    engine: OpenAIEngine
    path: str
    body: dict[str, Any]

    def text(self) -> bytes:
        """As it stands in the file."""
        return json_line(
            {
                "custom_id": self.id,
                "method": "POST",
                "url": f"/v1{self.path}",
                "body": self.body,
            }
        )


class Outcome(NamedTuple):
    """What became of a line: HTTP's status and body; None for `status`: it is still to be asked."""

    status: int | None
    body: Any = None
    batch: str = ""


WaitingLine = tuple[Line, Future[Outcome]]
_ANEW, _SINGLY = Outcome(None), Outcome(None)


@dataclass(eq=False)
class _Sent:
    """A batch that is out: its name, the ids of its lines, and who waits for them."""

    name: str
    ids: frozenset[str]
    id: str | None = None
    fresh: bool = False
    lines: dict[str, Future[Outcome]] = field(default_factory=dict)
    carried: asyncio.Task[None] | None = None


class Batches:
    """The batches of one session of a run, while `opened`.

    Args:
        given: how they are answered.
        lm: the run's model.
        run: the run's folder; the provider's batches are kept in `batches` there.
        tell: told a line about each batch.

    Raises:
        BadArgument: the model is none that can be asked in batches.
    """

    def __init__(self, given: Batch, lm: Any, run: Path, tell: Callable[[str], None]) -> None:
        if len(servers_of(lm.inner)) != 1:
            raise BadArgument(
                f"{lm.name} cannot be asked in batches: that takes one OpenAI-compatible server (api_base=URL), or a "
                "model's name and a folder for the files (batch_dir=)"
            )
        self.given, self.tell = given, tell
        self.by_files = given.folder is not None
        self.folder = path_of(given.folder) if given.folder is not None else run / "batches"
        self._written = 0
        self._most = MOST_LINES
        self._failure: BaseException | None = None
        self._out: dict[str, _Sent] = {}
        self._earlier: dict[str, _Sent | Outcome] = {}
        """What earlier sessions asked for and this one has not: its batch, or what became of it."""
        self._number = itertools.count(1)
        # asked without a batch: where that fails, it waits for one
        self._singly: set[str] = set()

    @contextlib.asynccontextmanager
    async def opened(self, journal: Journal) -> AsyncIterator[Batches]:
        """Inside the block calls are gathered, and batches of earlier sessions answer theirs.

        Raises:
            BadData: a file of answers that is none, or another run's. BadArgument: the folder is another run's.
        """
        self._journal = journal
        self.gatherer: Gatherer[Line, Outcome] = Gatherer(self._when_quiet)
        self._read_earlier()
        driving = asyncio.ensure_future(self._failing(self.gatherer.run()))
        try:
            yield self
        finally:
            tasks = [driving, *(sent.carried for sent in self._out.values() if sent.carried)]
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def taking(
        self, engine: Any, terms: CallPolicy, traffic: Traffic
    ) -> tuple[Any, CallPolicy, Traffic]:
        """The engine, its terms and its traffic in batches; a model that has no batches is asked as ever, meanwhile."""
        if len(servers_of(engine)) != 1:
            return engine, terms, replace(traffic, beside=self.gatherer)
        return (
            engine.over(functools.partial(self.send, engine)),
            replace(terms, pace=None, retry=PATIENT),
            replace(traffic, gate=None),
        )

    async def send(
        self,
        engine: OpenAIEngine,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        arriving: Any = None,
    ) -> ServerReply:
        """The reply to a request of `engine`, as if it had come by itself.

        Raises:
            lm15 errors. BatchWritten: it waits in a file. ServerRefused, BadData, CannotWrite: nothing is answered any
            more.
        """
        fields = dict(body or {})
        line = Line(f"{tally().key}-{digest(path, fields)[:8]}", engine, path, fields)
        outcome = await self._answered(line)
        if outcome.status is None:
            return await engine.server.send(method, path, body, arriving)
        # with NaN and Infinity, as servers write them
        content = json.dumps(outcome.body).encode()
        if outcome.status < 300:
            rate = {"rate": self.given.rate} if self.given.rate < 1 else {}
            return ServerReply(content, {"batch": outcome.batch, **rate})
        refusal = faults.of_reply(outcome.status, content)
        if isinstance(faults.final(refusal, address=""), ServerRefused):
            # no call's record says so, for it ends the session
            self._note(outcome.batch, refused=True)
        raise refusal

    async def _answered(self, line: Line) -> Outcome:
        """What became of `line`, or that it is to be asked singly."""
        while True:
            if self._failure is not None:
                raise copied(self._failure)
            outcome = self._earlier.pop(line.id, None)
            if isinstance(outcome, _Sent):
                waiting = outcome.lines[line.id] = Future()
                self._follow(outcome, line.engine)
                self.gatherer.touch()
                outcome = await asyncio.wrap_future(waiting)
            elif outcome is None:
                outcome = await self.gatherer.join(line)
            if outcome is not _ANEW:
                return outcome

    # --- sending

    def _when_quiet(self) -> None:
        out = sum(len(sent.lines) for sent in self._out.values())
        waiting = len(self.gatherer.waiting)
        ids = {line.id for line, _ in self.gatherer.waiting}
        too_few = 0 < waiting < self.given.fewest and not out and not self.by_files
        if too_few and self._singly.isdisjoint(ids):
            self.tell(
                f"{counted(waiting, 'call is', 'calls are')} too few for a batch: asked singly"
            )
            self._singly |= ids
            for _, future in self.gatherer.waiting:
                _settle(future, _SINGLY)
            self.gatherer.waiting.clear()
        elif worth_sending(waiting, out) and out < self._most:
            taken = self.gatherer.waiting[: self._most - out]
            for lines in _parted(taken):
                self._send(lines)
            # they wait on until all are written, or would wait for ever
            del self.gatherer.waiting[: len(taken)]
        if self.by_files and (waiting or out):
            self._stop()

    def _send(self, lines: list[WaitingLine]) -> None:
        engine, path = lines[0][0].engine, lines[0][0].path
        run = digest(str(self._journal.path.parent.resolve()))[:6]
        while True:  # a name that no file in the folder has; it says nothing else
            name = f"{run}-{next(self._number):04}"
            file = self.folder / f"{name}{INPUT}"
            if not file.exists() and _key_of(name) not in self._journal:
                break
        waiting = {line.id: future for line, future in lines}
        sent = _Sent(name, frozenset(waiting), fresh=True, lines=waiting)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(file, (line.text() for line, _ in lines))
        self._note(
            name,
            model=engine.model,
            address=engine.address,
            endpoint=f"/v1{path}",
            lines=sorted(sent.ids),
        )
        self._written += len(lines)
        self._follow(sent, engine)

    def _follow(self, sent: _Sent, engine: OpenAIEngine) -> None:
        """Wait for a batch, from now on."""
        self._out[sent.name] = sent
        if sent.carried is None and not self.by_files:
            sent.carried = asyncio.ensure_future(self._failing(self._carry(sent, engine)))

    def _note(self, name: str, **facts: Any) -> None:
        """Keep what is known of a batch in the journal."""
        known = self._journal.read(_key_of(name), "batch") or {
            "key": _key_of(name),
            "kind": "batch",
            "name": name,
            "at": round(time.time(), 3),
            "id": None,
        }
        record = {**known, **facts}
        if record != known:
            self._journal.append(record)

    def _stop(self) -> None:
        """What waits has been written: nothing more can be done before it is answered."""
        files = [
            self.folder / f"{sent.name}{INPUT}" for sent in self._out.values() if sent.lines
        ]
        what = "calls are still to be answered"
        if self._written:
            what = f"{counted(self._written, 'call was', 'calls were')} written"
        first, more = str(files[0]), f" and {len(files) - 1} more" * (len(files) > 1)
        self._fail(
            BatchWritten(
                f"{what}: {first}{more}; answer each NAME{INPUT} in a NAME{OUTPUT} beside it "
                f"(vllm run-batch -i {first} -o {first.removesuffix(INPUT)}{OUTPUT} --model …)"
            )
        )

    def _fail(self, error: BaseException) -> None:
        """Nothing can be answered any more."""
        if isinstance(error, OSError) and not isinstance(error, CannotWrite):
            error = CannotWrite(f"{error.filename or self.folder}: {error.strerror or error}")
        self._failure = self._failure or error
        futures = [future for _, future in self.gatherer.waiting]
        futures += [future for sent in self._out.values() for future in sent.lines.values()]
        self.gatherer.waiting.clear()
        for future in futures:
            if not future.done() and future.set_running_or_notify_cancel():
                future.set_exception(error)

    async def _failing(self, work: Awaitable[None]) -> None:
        """Do what the session cannot do without."""
        try:
            await work
        except Exception as error:  # noqa: BLE001 - whoever waits for an answer gets it
            self._fail(error.with_traceback(None))  # its frames hold what the provider wrote

    # --- answers

    def _resolve(self, sent: _Sent, outcomes: Mapping[str, Outcome]) -> None:
        """Hand a batch's answers on; what it does not answer is gathered anew."""
        self._out.pop(sent.name, None)
        for id in sent.ids:
            outcome = outcomes.get(id, _ANEW)
            if (future := sent.lines.pop(id, None)) is not None:
                _settle(future, outcome)
            elif self._earlier.get(id) is sent:  # it is asked later
                self._earlier[id] = outcome
        self.gatherer.touch()

    def _read_earlier(self) -> None:
        """The batches of earlier sessions: their answers, where these are on file, or that they are still out."""
        named = dict[str, Any]()
        last = dict[str, str]()  # a call -> the last batch that asks for it
        failed = dict[str, str | None]()  # a call -> the batch whose answer it failed over
        done = set[str]()  # calls that have a reply
        for record in self._journal.records("batch", "call"):
            key = record["key"]
            if record["kind"] == "batch":
                name = record["name"]
                # a run may be anybody's, and its files are found by this name
                if not re.fullmatch("[0-9a-f]{6}-[0-9]{4,}", name):
                    raise BadData(
                        f"{self._journal.path}: {name!r:.80} is not the name of a batch: restore the file"
                    )
                if name not in named:  # it is noted again once its id is known
                    last |= dict.fromkeys(map(_call_of, record["lines"]), name)
                named[name] = record
            elif record.get("error"):
                failed[key] = last.get(key)
                done.discard(key)
            else:
                done.add(key)
        for path in sorted(self.folder.glob(f"*{OUTPUT}")) if self.by_files else ():
            if path.name.removesuffix(OUTPUT) not in named:
                raise BadData(
                    f"{path} answers no batch of this run: give each run a folder of its own (batch_dir=), or take "
                    "the file out"
                )
        for name, record in named.items():
            sent = _Sent(name, frozenset(record["lines"]), record["id"])
            is_read = (self.folder / f"{name}{OUTPUT}").exists()
            outcomes = self._outcomes(sent) if is_read else {}
            for id in sent.ids:
                call = _call_of(id)
                if call in done:
                    continue
                # of the batches that asked for it the last one counts
                self._earlier.pop(id, None)
                outcome = outcomes.get(id) if is_read else sent
                refused = record.get("refused") and getattr(outcome, "status", None) != _OK
                if outcome is not None and failed.get(call) != name and not refused:
                    self._earlier[id] = outcome

    def _outcomes(self, sent: _Sent) -> dict[str, Outcome]:
        """The answers on file to the lines of a batch; a line that was cut off is missing. Raises: BadData."""
        found, path = dict[str, Outcome](), self.folder / f"{sent.name}{OUTPUT}"
        with opened(path) as stream:
            for number, line in raw_lines(stream, path):
                where = f"{path}, line {number}"
                if not line.strip():
                    continue
                try:
                    value = http.json_of(line)
                except ValueError as error:
                    if line.endswith(b"\n") or not is_torn(line, b"{"):
                        raise BadData(f"{where}: does not parse as JSON ({error})") from None
                    self.tell(f"{where} is cut off: its call is asked again")
                    break
                id, outcome = _read(value, sent, where)
                # a line may be answered twice, and was paid for once
                if id not in found or found[id].status != _OK:
                    found[id] = outcome
        return found

    # --- a provider's batches

    async def _carry(self, sent: _Sent, engine: OpenAIEngine) -> None:
        """Have the provider answer a batch. Raises: ServerRefused, BadData."""
        import openai

        address, path = engine.address, self.folder / f"{sent.name}{OUTPUT}"
        async with engine.server.for_files() as client:
            work = _AtProvider(client, address, self.given)
            if sent.id is None:
                sent.id = await work.created(
                    sent.name, self.folder / f"{sent.name}{INPUT}", fresh=sent.fresh
                )
                # One that holds a secret is not kept: the next session finds the batch by its name.
                if sent.id == hidden(sent.id):
                    self._note(sent.name, id=sent.id)
                calls = counted(len(sent.ids), "call is", "calls are")
                self.tell(f"batch {sent.name}: {calls} with {address} ({hidden(sent.id)})")
            try:
                done = await work.over(sent.id)
                if done.status == "failed":
                    return await self._refused(sent, done)
                await work.fetched(done, path, sent)
                if done.status == "cancelled":
                    raise ServerRefused(
                        f"batch {hidden(sent.id)} was cancelled at {address}: the same command sends what it left "
                        "unanswered"
                    )
            except openai.NotFoundError:
                self.tell(
                    f"batch {sent.name}: {address} has {hidden(sent.id)} no more, or not its answers: asked anew"
                )
                return self._resolve(sent, {})
        outcomes = self._outcomes(sent)
        answered = sum(outcome.status == _OK for outcome in outcomes.values())
        self.tell(
            f"batch {sent.name}: {done.status}, {answered:,} of {len(sent.ids):,} answered"
        )
        return self._resolve(sent, outcomes)

    async def _refused(self, sent: _Sent, done: Any) -> None:
        """A batch that the provider did not take: too many tokens waiting there are taken in smaller ones."""
        faults_of = (done.errors.data if done.errors else None) or []
        words = faults.cleaned("; ".join(str(fault.message) for fault in faults_of[:3]))
        too_much = len(sent.ids) > 1 and any("limit" in str(fault.code) for fault in faults_of)
        if not too_much:
            self._note(sent.name, refused=True)  # the next session asks anew what it left
            refused = (
                f"batch {hidden(sent.id or '')} was refused: {words or 'without a reason'}"
            )
            raise ServerRefused(f"{refused}; the same command sends its calls again").quoting(
                words
            )
        self._most = max(1, min(self._most, len(sent.ids)) // 2)
        self.tell(
            f"batch {sent.name}: refused ({words}); from here on at most {self._most:,} calls are out at a time"
        )
        await asyncio.sleep(self.given.poll)  # what waits there may be another run's
        self._resolve(sent, {})


@dataclass
class _AtProvider:
    """A provider's files and batches, through `openai`'s client. A server that is away for a while is waited for."""

    client: openai.AsyncOpenAI
    address: str
    given: Batch
    warned: bool = False

    async def created(self, name: str, file: Path, *, fresh: bool) -> str:
        """The id of the batch of that name, which is made; but one that is not `fresh` the server may have already."""
        first = next(iter(json_rows(file))).value
        tried = not fresh

        async def found_or_made() -> str:
            nonlocal tried
            if tried:
                async for known in self.client.batches.list(limit=100):
                    is_ours = (known.metadata or {}).get("blendfilter") == name
                    if is_ours and known.status not in ("failed", "cancelled"):
                        return str(known.id)
            tried = True
            with file.open("rb") as content:
                uploaded = await self.client.files.create(
                    file=(file.name, content), purpose="batch"
                )
            # else it might be made twice
            made = await self.client.with_options(max_retries=0).batches.create(
                input_file_id=uploaded.id,
                endpoint=first["url"],
                completion_window=self.given.window,  # type: ignore[arg-type]
                metadata={"blendfilter": name},
            )
            return str(made.id)

        return str(await self._insisting(found_or_made))

    async def over(self, id: str) -> Any:
        """The batch, once nothing more will come of it. Raises: `openai.NotFoundError`: the server has it no more."""
        while True:
            batch = await self._insisting(functools.partial(self.client.batches.retrieve, id))
            if batch.status in _OVER:
                return batch
            await asyncio.sleep(self.given.poll)

    async def fetched(self, batch: Any, path: Path, sent: _Sent) -> None:
        """The answers of a batch, those of its faults behind them, in one file. Raises: as `over`."""

        async def fetch() -> None:
            # without a name: it may hold the key
            with tempfile.TemporaryFile(dir=path.parent) as fetched:
                for id in filter(None, (batch.output_file_id, batch.error_file_id)):
                    async with self.client.files.with_streaming_response.content(id) as reply:
                        async for piece in reply.iter_bytes():
                            fetched.write(piece)
                    fetched.write(b"\n")
                fetched.seek(0)
                lines = raw_lines(fetched, f"{self.address}, batch {hidden(batch.id)}")
                write_whole(path, (_kept(line, sent) for _, line in lines))

        await self._insisting(fetch)

    async def _insisting(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, once the server answers. Raises: what trying again does not change."""
        import httpx
        import openai

        while True:
            try:
                return await work()
            except (openai.APIError, httpx.HTTPError) as error:
                missing = isinstance(error, openai.NotFoundError)
                if missing and re.search("/(batches|files)/", str(error.request.url)):
                    raise
                fault = faults.translate(error, key=self.client.api_key)
            # Outside of the block: the error holds the request, and with it the key.
            if (status := getattr(fault, "status", None)) in (404, 405, 501):
                raise ServerRefused(
                    f"{self.address} has no batches (HTTP {status}): leave out batch=, or have files answered "
                    "(batch_dir=)"
                )
            final = faults.final(fault, address=self.address)
            if not faults.retryable(fault):
                refusal = ServerRefused(str(final)).quoting(str(final))
                raise final if isinstance(final, ServerRefused) else refusal
            if not self.warned:
                self.warned = True
                logger.warning(
                    "%s: %s; it is tried again until it answers", self.address, final
                )
            await asyncio.sleep(min(FORGIVING, self.given.poll * 2))


def _parted(
    lines: list[WaitingLine],
) -> Iterator[list[WaitingLine]]:
    """The lines as batches: of one server, model and endpoint each, and no larger than it takes."""
    parts = defaultdict[Any, list[WaitingLine]](list)
    sizes = defaultdict[Any, int](int)
    for line, future in lines:
        place = line.engine.address, line.engine.model, line.path
        length = len(line.text())
        is_full = len(parts[place]) == MOST_LINES or sizes[place] + length > MOST_BYTES
        if parts[place] and is_full:
            yield parts.pop(place)
            sizes[place] = 0
        parts[place].append((line, future))
        sizes[place] += length
    yield from parts.values()


def _settle(future: Future[Outcome], outcome: Outcome) -> None:
    """Hand `outcome` on, unless the one who waited is gone."""
    if future.set_running_or_notify_cancel():
        future.set_result(outcome)


def _call_of(id: str) -> str:
    """The key in the journal of the call that a line is of."""
    return id.partition("-")[0]


def _key_of(name: str) -> str:
    return digest("batch", name)


def _read(value: Any, sent: _Sent, where: str = "") -> tuple[str, Outcome]:
    """A line of answers to a batch: its id, and what became of it. Raises: BadData."""
    match value:
        case {
            "custom_id": str(id),
            "response": {"status_code": int(status), "body": body},
            **rest,
        }:
            fault = rest.get("error")
            if fault and (body is None or status == _OK):  # half a reply may stand beside it
                status, body = (500 if status == _OK else status), {"error": fault}
            outcome = Outcome(status, body, sent.name)
        case {"custom_id": str(id), "error": error} if error:  # it expired, or was never asked
            body = {"error": error if isinstance(error, dict) else {"message": str(error)}}
            outcome = Outcome(500, body, sent.name)
        case _:
            raise BadData(
                f'{where}: no answer to a line of a batch: write {{"custom_id": …, "response": {{"status_code": '
                '200, "body": …}}'
            )
    if id not in sent.ids:
        raise BadData(
            f"{where}: '{hidden(id)}' is no line of this batch: the file answers another one's"
        )
    return id, outcome


def _kept(line: bytes, sent: _Sent) -> bytes:
    """A provider's answer as it is kept: without secrets that it echoes. Nothing of what is no answer to the batch."""
    try:
        value = http.json_of(line)
        id, _ = _read(value, sent)
        return json_line({**hidden_in(value), "custom_id": id})
    except (ValueError, BadData, RecursionError):
        return b""
