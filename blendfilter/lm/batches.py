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
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

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
    LONGEST,
    JsonRow,
    is_torn,
    json_line,
    json_rows,
    opened,
    path_of,
    raw_lines,
    too_long,
    write_whole,
    writing,
)
from blendfilter.journal import Journal, digest
from blendfilter.lm import faults
from blendfilter.lm.attempts import CallPolicy, Retry, Traffic
from blendfilter.lm.budget import tally
from blendfilter.lm.clients import ServerReply
from blendfilter.lm.openai import OpenAIEngine, servers_of
from blendfilter.secrets import hidden, hidden_in

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
_NAME = re.compile(r"[0-9a-f]{6}-[0-9]{4,}")
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
        if not isinstance(self.window, str) or not self.window.strip():
            raise BadArgument(
                f"a batch window of {self.window!r} (batch_window=): write it as the provider does, 24h"
            )
        if not (isinstance(self.poll, int | float) and self.poll > 0):
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
            self.waiting = [each for each in self.waiting if not each[1].cancelled()]
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


@dataclass(frozen=True)
class Line:
    """One request of a batch: what carries it, and what it asks; `id` begins with the call's key in the journal."""

    id: str
    transport: BatchTransport
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


@dataclass(frozen=True)
class Outcome:
    """What became of a line: HTTP's status and body; None for `status`: it is still to be asked."""

    status: int | None
    body: Any = None
    batch: str = ""


_ANEW, _SINGLY = Outcome(None), Outcome(None)


@dataclass
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

    def __init__(
        self, given: Batch, lm: Any, run: Path, tell: Callable[[str], None] = logger.info
    ) -> None:
        if len(servers_of(lm.inner)) != 1:
            raise BadArgument(
                f"{lm.name} cannot be asked in batches: that takes one OpenAI-compatible server (api_base=URL), or a "
                "model's name and a folder for the files (batch_dir=)"
            )
        self.given, self.tell = given, tell
        self.by_files = given.folder is not None
        self.folder = path_of(given.folder) if given.folder is not None else run / "batches"
        self.rounds: list[int] = []
        """Calls of each batch that this session sent."""
        self._most = MOST_LINES
        self._failure: BaseException | None = None
        self._out: dict[str, _Sent] = {}
        self._sent_before: dict[str, _Sent] = {}
        self._known: dict[str, Outcome] = {}
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
        transport = BatchTransport(self, engine)
        return (
            engine.over(transport),
            replace(terms, pace=None, retry=PATIENT),
            replace(traffic, gate=None),
        )

    async def answer(self, line: Line) -> Outcome:
        """What became of `line`, or that it is to be asked singly.

        Raises:
            BatchWritten: it waits in a file. ServerRefused, BadData, CannotWrite: it can be answered no more.
        """
        while True:
            if self._failure is not None:
                raise copied(self._failure)
            outcome = self._known.pop(line.id, None)
            if outcome is None and (sent := self._sent_before.pop(line.id, None)) is not None:
                waiting = sent.lines[line.id] = Future()
                self._follow(sent, line.transport)
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
        if (
            0 < waiting < self.given.fewest
            and not out
            and not self.by_files
            and self._never_singly()
        ):
            self.tell(
                f"{counted(waiting, 'call is', 'calls are')} too few for a batch: asked singly"
            )
            for line, future in self.gatherer.waiting:
                self._singly.add(line.id)
                if future.set_running_or_notify_cancel():
                    future.set_result(_SINGLY)
            self.gatherer.waiting.clear()
        elif worth_sending(waiting, out) and out < self._most:
            taken = self.gatherer.waiting[: self._most - out]
            for lines in _parted(taken):
                self._send(lines)
            # they wait on until all are written, or would wait for ever
            del self.gatherer.waiting[: len(taken)]
        if self.by_files and (waiting or out):
            self._stop()

    def _never_singly(self) -> bool:
        return self._singly.isdisjoint(line.id for line, _ in self.gatherer.waiting)

    def _send(self, lines: list[tuple[Line, Future[Outcome]]]) -> None:
        transport, path = lines[0][0].transport, lines[0][0].path
        name = self._new_name()
        waiting = {line.id: future for line, future in lines}
        sent = _Sent(name, frozenset(waiting), fresh=True, lines=waiting)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / f"{name}{INPUT}", (line.text() for line, _ in lines))
        self._note(
            sent,
            model=transport.engine.model,
            address=transport.engine.address,
            endpoint=f"/v1{path}",
        )
        self.rounds.append(len(lines))
        self._follow(sent, transport)

    def _follow(self, sent: _Sent, transport: BatchTransport) -> None:
        """Wait for a batch, from now on."""
        self._out[sent.name] = sent
        if sent.carried is None and not self.by_files:
            sent.carried = asyncio.ensure_future(self._failing(self._carry(sent, transport)))

    def _note(self, sent: _Sent, **more: Any) -> None:
        known = self._journal.read(_key_of(sent.name), "batch") or {"at": round(time.time(), 3)}
        # An id that holds a secret is not kept: the next session finds the batch by its name.
        id = sent.id if sent.id == hidden(sent.id or "") else None
        record = {
            **known,
            "key": _key_of(sent.name),
            "kind": "batch",
            "name": sent.name,
            "id": id,
            **more,
        }
        self._journal.append({**record, "lines": sorted(sent.ids)})

    def _new_name(self) -> str:
        """A name that no file in the folder has; it says nothing else."""
        run = digest(str(self._journal.path.parent.resolve()))[:6]
        for number in self._number:
            name = f"{run}-{number:04}"
            if (
                not (self.folder / f"{name}{INPUT}").exists()
                and _key_of(name) not in self._journal
            ):
                return name
        raise AssertionError

    def _stop(self) -> None:
        """What waits has been written: nothing more can be done before it is answered."""
        files = [
            self.folder / f"{sent.name}{INPUT}" for sent in self._out.values() if sent.lines
        ]
        written = sum(self.rounds)
        what = (
            f"{counted(written, 'call was', 'calls were')} written"
            if written
            else "calls are still to be answered"
        )
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
        for id, outcome in outcomes.items():
            future = sent.lines.pop(id, None)
            if future is None:
                if not self._succeeded(id):
                    self._known[id] = outcome
                self._sent_before.pop(id, None)
            elif future.set_running_or_notify_cancel():
                future.set_result(outcome)
        for id in sent.ids:
            self._sent_before.pop(id, None)
        for future in sent.lines.values():
            if future.set_running_or_notify_cancel():
                future.set_result(_ANEW)
        sent.lines.clear()
        self.gatherer.touch()

    def _read_earlier(self) -> None:
        """The batches of earlier sessions: their answers, where these are on file, or that they are still out."""
        named, failed, done = self._recorded()
        if self.by_files:
            self._check_files(named)
        for name, record in named.items():
            sent = _Sent(name, frozenset(record["lines"]), record["id"])
            ids = {id for id in sent.ids if _call_of(id) not in done}
            for id in ids:  # of the batches that asked for it the last one counts
                self._known.pop(id, None)
                self._sent_before.pop(id, None)
            ids = {id for id in ids if failed.get(_call_of(id)) != name}
            refused = record.get("refused", False)
            if (self.folder / f"{name}{OUTPUT}").exists():
                for id, outcome in self._outcomes(sent).items():
                    if id in ids and (outcome.status == _OK or not refused):
                        self._known[id] = outcome
            elif not refused:
                self._sent_before |= dict.fromkeys(ids, sent)

    def _recorded(self) -> tuple[dict[str, Any], dict[str, str | None], set[str]]:
        """The journal's batches by name, the batch whose answer each failed call failed over, and the calls that
        have a reply. Raises: BadData.
        """
        named = dict[str, Any]()
        asked = dict[str, str]()  # a call -> the last batch that asks for it
        failed = dict[str, str | None]()
        done = set[str]()
        for record in self._journal.records("batch", "call"):
            key = record["key"]
            if record["kind"] == "batch":
                name = record["name"]
                # a run may be anybody's, and its files are found by this name
                if not _NAME.fullmatch(name):
                    raise BadData(
                        f"{self._journal.path}: {name!r:.80} is not the name of a batch: restore the file"
                    )
                if name not in named:  # it is noted again once its id is known
                    asked |= dict.fromkeys(map(_call_of, record["lines"]), name)
                named[name] = record
            elif record.get("error"):
                failed[key] = asked.get(key)
                done.discard(key)
            else:
                done.add(key)
        return named, failed, done

    def _succeeded(self, id: str) -> bool:
        record = self._journal.read(_call_of(id))
        return record is not None and not record.get("error")

    def _check_files(self, named: Mapping[str, Any]) -> None:
        """Raise `BadData` for answers in the folder that are to none of this run's batches."""
        for path in sorted(self.folder.glob(f"*{OUTPUT}")):
            if path.name.removesuffix(OUTPUT) not in named:
                raise BadData(
                    f"{path} answers no batch of this run: give each run a folder of its own (batch_dir=), or take "
                    "the file out"
                )

    def _outcomes(self, sent: _Sent) -> dict[str, Outcome]:
        """The answers on file to the lines of a batch. Raises: BadData."""
        found = dict[str, Outcome]()
        for row in self._rows(self.folder / f"{sent.name}{OUTPUT}"):
            id, outcome = _read(row, sent)
            # a line may be answered twice, and was paid for once
            if id not in found or found[id].status != _OK:
                found[id] = outcome
        return found

    def _rows(self, path: Path) -> Iterator[JsonRow]:
        """The lines of a file of answers; one that its writer was killed in is missing. Raises: BadData."""
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
                    return
                yield JsonRow(where, number - 1, value)

    # --- a provider's batches

    async def _carry(self, sent: _Sent, transport: BatchTransport) -> None:
        """Have the provider answer a batch. Raises: ServerRefused, BadData."""
        import openai

        address, path = transport.engine.address, self.folder / f"{sent.name}{OUTPUT}"
        async with transport.engine.server.for_files() as client:
            work = _AtProvider(client, address, self.given)
            if sent.id is None:
                sent.id = await work.created(
                    sent.name, self.folder / f"{sent.name}{INPUT}", fresh=sent.fresh
                )
                self._note(sent)
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
        codes = {str(each.code) for each in faults_of}
        words = faults.cleaned("; ".join(str(each.message) for each in faults_of[:3]))
        too_much = any("limit" in code for code in codes) and len(sent.ids) > 1
        if not too_much:
            self.use_up(sent.name)
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

    def use_up(self, name: str) -> None:
        """Have the next session ask anew what a batch did not answer: its refusal ends this one."""
        known = self._journal.read(_key_of(name), "batch")
        if known is not None and not known.get("refused"):
            self._journal.append({**known, "refused": True})


class _AtProvider:
    """A provider's files and batches, through `openai`'s client. A server that is away for a while is waited for."""

    def __init__(self, client: openai.AsyncOpenAI, address: str, given: Batch) -> None:
        self._client, self._address, self._given = client, address, given
        self._warned = False

    async def created(self, name: str, file: Path, *, fresh: bool) -> str:
        """The id of the batch of that name, which is made; but one that is not `fresh` the server may have already."""
        first = next(iter(json_rows(file))).value
        window: Any = self._given.window
        tried = not fresh

        async def found_or_made() -> str:
            nonlocal tried
            if tried and (known := await self._find(name)) is not None:
                return known
            tried = True
            with file.open("rb") as content:
                uploaded = await self._client.files.create(
                    file=(file.name, content), purpose="batch"
                )
            # else it might be made twice
            made = await self._client.with_options(max_retries=0).batches.create(
                input_file_id=uploaded.id,
                endpoint=first["url"],
                completion_window=window,
                metadata={"blendfilter": name},
            )
            return str(made.id)

        return str(await self._insisting(found_or_made))

    async def _find(self, name: str) -> str | None:
        async for known in self._client.batches.list(limit=100):
            if (known.metadata or {}).get("blendfilter") == name and known.status not in (
                "failed",
                "cancelled",
            ):
                return str(known.id)
        return None

    async def over(self, id: str) -> Any:
        """The batch, once nothing more will come of it. Raises: `openai.NotFoundError`: the server has it no more."""
        while True:
            batch = await self._insisting(functools.partial(self._client.batches.retrieve, id))
            if batch.status in _OVER:
                return batch
            await asyncio.sleep(self._given.poll)

    async def fetched(self, batch: Any, path: Path, sent: _Sent) -> None:
        """The answers of a batch, those of its faults behind them, in one file. Raises: as `over`."""
        beside = path.with_name(f".{path.name}.tmp")

        async def fetch() -> None:
            with writing(path), beside.open("wb") as file:
                for id in filter(None, (batch.output_file_id, batch.error_file_id)):
                    async with self._client.files.with_streaming_response.content(id) as reply:
                        async for line in _lines(reply.iter_bytes()):
                            file.write(_kept(line, sent))
                file.flush()
                os.fsync(file.fileno())

        try:
            await self._insisting(fetch)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)

    async def _insisting(self, work: Callable[[], Any]) -> Any:
        """The result of `work`, once the server answers. Raises: what trying again does not change."""
        import httpx
        import openai

        while True:
            try:
                return await work()
            except openai.NotFoundError as error:
                if any(f"/{each}/" in str(error.request.url) for each in ("batches", "files")):
                    raise
                fault = faults.translate(error, key=self._client.api_key)
            except (
                openai.APIError,
                httpx.HTTPError,
            ) as error:  # the latter: a file that broke off
                fault = faults.translate(error, key=self._client.api_key)
            # Outside of the block: the error holds the request, and with it the key.
            if (status := getattr(fault, "status", None)) in (404, 405, 501):
                raise ServerRefused(
                    f"{self._address} has no batches (HTTP {status}): leave out batch=, or have files answered "
                    "(batch_dir=)"
                )
            final = faults.final(fault, address=self._address)
            if not faults.retryable(fault):
                refusal = ServerRefused(str(final)).quoting(str(final))
                raise final if isinstance(final, ServerRefused) else refusal
            if not self._warned:
                self._warned = True
                logger.warning(
                    "%s: %s; it is tried again until it answers", self._address, final
                )
            await asyncio.sleep(min(FORGIVING, self._given.poll * 2))


class BatchTransport:
    """In the place of an engine's HTTP clients: each request is a line of a batch."""

    def __init__(self, batches: Batches, engine: OpenAIEngine) -> None:
        self.batches, self.engine = batches, engine

    async def send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        arriving: Any = None,
    ) -> ServerReply:
        """The reply as if it had come by itself. Raises: lm15 errors; as `Batches.answer`."""
        asked, batches = dict(body or {}), self.batches
        line = Line(f"{tally().key}-{digest(path, asked)[:8]}", self, path, asked)
        outcome = await batches.answer(line)
        if outcome.status is None:
            return await self.engine.server.send(method, path, body, arriving)
        if outcome.status < 300:
            rate = {"rate": batches.given.rate} if batches.given.rate < 1 else {}
            # with NaN and Infinity, as servers write them
            content = json.dumps(outcome.body).encode()
            return ServerReply(content, {"batch": outcome.batch, **rate})
        refusal = faults.in_body(outcome.status, outcome.body)
        if isinstance(faults.final(refusal, address=""), ServerRefused):
            batches.use_up(outcome.batch)  # no call's record says so: it ends the session
        raise refusal


def _parted(
    lines: list[tuple[Line, Future[Outcome]]],
) -> Iterator[list[tuple[Line, Future[Outcome]]]]:
    """The lines as batches: of one server, model and endpoint each, and no larger than it takes."""
    groups: dict[Any, list[tuple[Line, Future[Outcome]]]] = {}
    for line, future in lines:
        place = line.transport.engine.address, line.transport.engine.model, line.path
        groups.setdefault(place, []).append((line, future))
    for group in groups.values():
        part, size = list[tuple[Line, Future[Outcome]]](), 0
        for line, future in group:
            length = len(line.text())
            if part and (len(part) == MOST_LINES or size + length > MOST_BYTES):
                yield part
                part, size = [], 0
            part.append((line, future))
            size += length
        yield part


def counted(n: int, one: str, more: str) -> str:
    """So many of something, in words.

    >>> counted(1, "call", "calls"), counted(1200, "call", "calls")
    ('1 call', '1,200 calls')
    """
    return f"{n:,} {one if n == 1 else more}"


def _call_of(id: str) -> str:
    """The key in the journal of the call that a line is of."""
    return id.partition("-")[0]


def _key_of(name: str) -> str:
    return digest("batch", name)


def _read(row: JsonRow, sent: _Sent) -> tuple[str, Outcome]:
    """A line of answers to a batch: its id, and what became of it. Raises: BadData."""
    match row.value:
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
                f'{row.where}: no answer to a line of a batch: write {{"custom_id": …, "response": {{"status_code": '
                '200, "body": …}}'
            )
    if id not in sent.ids:
        raise BadData(
            f"{row.where}: '{hidden(id)}' is no line of this batch: the file answers another one's"
        )
    return id, outcome


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The lines of what comes in pieces. Raises: BadData for one that is no answer by its length."""
    parts, size = list[bytes](), 0
    async for piece in pieces:
        first, *more = piece.split(b"\n")
        parts.append(first)
        size += len(first)
        for line in more:
            yield b"".join(parts)
            parts, size = [line], len(line)
        if size > LONGEST:
            raise BadData(f"the provider's file of answers: {too_long('a line')}")
    yield b"".join(parts)


def _kept(line: bytes, sent: _Sent) -> bytes:
    """A provider's answer as it is kept: without secrets that it echoes. Nothing of what is no answer to the batch."""
    try:
        value = http.json_of(line)
        id, _ = _read(JsonRow("", 0, value), sent)
        return json_line({**hidden_in(value), "custom_id": id})
    except (ValueError, BadData, RecursionError):
        return b""
