"""A timeline of tokens over the nodes, and what happens on it."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from . import _swarm_h, errors
from ._native import Cancel, Handle, begin_thread, call, call_text, ids_array, interruptible, lib, options
from .model import Adapter, Messages, Model, Prompt

log = logging.getLogger("swarmnode")


class EventKind(IntEnum):
    """What an event is; its numbers in brackets."""

    PROGRESS = _swarm_h.SWARM_EVENT_PROGRESS  # tokens of a prompt are computed (done of total, reused)
    TOKEN = _swarm_h.SWARM_EVENT_TOKEN  # a token was sampled (id, logprob)
    TEXT = _swarm_h.SWARM_EVENT_TEXT  # text is final
    RETRACT = _swarm_h.SWARM_EVENT_RETRACT  # an audit failed: of the text only the first bytes stand (kept, kept_tokens)
    FAILOVER = _swarm_h.SWARM_EVENT_FAILOVER  # a node failed and was replaced; the tokens are not affected
    MOVE = _swarm_h.SWARM_EVENT_MOVE  # the session moved: its node drains, or a faster route was found
    AUDIT = _swarm_h.SWARM_EVENT_AUDIT  # a node gave a wrong result and was banned


_NUMBERS = {EventKind.PROGRESS: ("done", "total", "reused"), EventKind.TOKEN: ("id", "logprob"),
            EventKind.RETRACT: ("kept", "kept_tokens")}
_EVERY = sum(1 << kind for kind in EventKind)
_LOGGED = 1 << EventKind.FAILOVER | 1 << EventKind.MOVE | 1 << EventKind.AUDIT
_OF_TEXT = _LOGGED | 1 << EventKind.TEXT


@dataclass(frozen=True)
class Event:
    """text: final text, or a sentence about the event. top: the most likely tokens at a token's place and their
    log-probabilities, best first, with the option logprobs."""

    kind: EventKind
    text: str
    numbers: dict[str, float] = field(default_factory=dict)
    top: list[tuple[int, float]] = field(default_factory=list)


_decode = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_char_p)(
    ("PyUnicode_DecodeUTF8", ctypes.pythonapi))


def _text(pointer: int) -> str:
    length = ctypes.c_size_t()
    text: str = _decode(lib.swarm_event_text(pointer, ctypes.byref(length)), length.value, b"replace")
    return text


def _event(pointer: int, number: int) -> Event:
    kind = EventKind(number)
    numbers = {name: lib.swarm_event_number(pointer, name.encode()) for name in _NUMBERS.get(kind, ())}
    top: list[tuple[int, float]] = []
    if kind == EventKind.TOKEN:
        ids, logprobs = ctypes.c_void_p(), ctypes.c_void_p()
        n = lib.swarm_event_top(pointer, ctypes.byref(ids), ctypes.byref(logprobs))
        if n and ids.value and logprobs.value:
            top = list(zip((ctypes.c_int32 * n).from_address(ids.value), (ctypes.c_double * n).from_address(logprobs.value)))
    return Event(kind, _text(pointer), numbers, top)


@dataclass(frozen=True)
class Generation:
    """ids: the generated tokens. finish_reason: "stop", "stop_text", "length" or "interrupted". raw: all that
    `swarm generate --json` prints."""

    ids: list[int]
    text: str
    finish_reason: str
    raw: dict[str, Any]


class Session(Handle):
    """A timeline of tokens and its KV cache, wherever the blocks are. One call at a time, from any thread.

    model: of which; its swarm computes the blocks that the option `local` ("A:B" or "all") does not name.
    adapter: LoRA or virtual tokens. max_length: limit of the timeline in tokens (the option ctx). on_event: called with
    each `Event` during calls, and may be set between them; returning True ends a generation after this token. Other options:
    `describe_options("session")`."""

    _what = "session"
    _exclusive = True

    def __init__(self, model: Model, *, adapter: Adapter | None = None, max_length: int | None = None,
                 on_event: Callable[[Event], object] | None = None, **given: Any) -> None:
        self.model, self.on_event = model, on_event
        self._cancel = Cancel()
        self._raised: BaseException | None = None
        self._on_text: Callable[[str], object] | None = None
        self._wanted = _EVERY
        pointer = ctypes.c_void_p()
        if max_length is not None:
            given["ctx"] = max_length
        self._checked = {"audit_hold": True} if float(given.get("audit") or 0) > 0 else {}  # of a stream of text
        with model._use() as m, options("session", given) as made:
            swarm = model.swarm._retain() if model.swarm else None
            try:
                other = adapter._retain() if adapter else None
                try:
                    interruptible(self._cancel, lambda: call(lib.swarm_session_open, m, swarm, made, other,
                                                             self._cancel.pointer, ctypes.byref(pointer)))
                    self._begin(pointer, lib.swarm_session_close, model, model.swarm, adapter)
                finally:
                    if adapter:
                        adapter._release()
            finally:
                if model.swarm:
                    model.swarm._release()
        import weakref

        weak = weakref.ref(self)  # the library must not keep the session alive
        self._on_event = _swarm_h.swarm_event_callback(_listener(weak))
        self._on_logits: Any = None
        lib.swarm_session_on_event(pointer, self._on_event, None)

    def on_logits(self, change: Callable[[NDArray[np.int32], NDArray[np.float32]], None] | None) -> None:
        """Calls change(ids, logits (vocab)) before a token is sampled; it changes the logits in place, for masks and
        biases, must depend on nothing but the ids (n) before the token, and keeps no reference to the logits, which are
        the library's."""

        def callback(_: Any, ids: int | None, n: int, logits: int, vocab: int) -> None:
            try:
                before = np.array((ctypes.c_int32 * n).from_address(ids) if ids else (), np.int32)  # a copy may be kept
                change(before, np.ctypeslib.as_array((ctypes.c_float * vocab).from_address(logits)))  # type: ignore[misc]
            except BaseException as e:
                self._raised = self._raised or e
                self._cancel.set()

        with self._use() as pointer:
            made = _swarm_h.swarm_logits_callback(callback) if change else _swarm_h.swarm_logits_callback()
            lib.swarm_session_on_logits(pointer, made, None)
            self._on_logits = made

    def cancel(self) -> None:
        """Ends the call in progress, or else the next one, from any thread, within a second: it raises Cancelled, but a
        generation that has begun returns what it has. Later calls go on."""
        self._cancel.set()

    def _run(self, function: Callable[..., int], *arguments: Any, pointer: ctypes.c_void_p) -> None:
        """A call of the library on this session, and what its callbacks raised."""
        wanted = _EVERY if self.on_event else _OF_TEXT if self._on_text else _LOGGED  # each costs every token something
        if wanted != self._wanted:
            lib.swarm_session_want_events(pointer, wanted)
            self._wanted = wanted
        try:
            interruptible(self._cancel, lambda: call(function, pointer, *arguments))
        except errors.Cancelled:
            if self._raised is None:
                raise
        finally:
            self._cancel.clear()
            raised, self._raised = self._raised, None
            if raised is not None:
                raise raised

    # -- texts

    @overload
    def generate(self, prompt: Prompt | None = ..., *, stream: Literal[True], **given: Any) -> Iterator[str]: ...

    @overload
    def generate(self, prompt: Prompt | None = ..., *, stream: Literal[False] = ..., **given: Any) -> Generation: ...

    def generate(self, prompt: Prompt | None = None, *, stream: bool = False, **given: Any) -> Generation | Iterator[str]:
        """Makes the prompt (a text, messages, or token ids; None: the tokens that are there) the timeline and continues
        it. What the prompt shares with the timeline is not computed again. Options: max_tokens, temperature, top_k,
        top_p, min_p, repeat_penalty, seed, stop, logprobs, ... (`describe_options("generation")`).

        stream: pieces of text as they are final; leaving the loop ends the generation, and what was computed stays.
        With the option `audit` of the session, only checked text is a piece."""
        ids, given = self._prompt(prompt, given)
        return self._stream(ids, given) if stream else self._generate(ids, given)

    def _prompt(self, prompt: Prompt | None, given: Mapping[str, Any]) -> tuple[NDArray[np.int32], dict[str, Any]]:
        if prompt is None:
            return self.tokens, dict(given)
        ids, answer = self.model.prompt_ids(prompt)
        return ids_array(ids), {**({"answer": True} if answer else {}), **given}

    def _generate(self, ids: NDArray[np.int32], given: Mapping[str, Any],
                  on_text: Callable[[str], object] | None = None) -> Generation:
        text, length = ctypes.c_void_p(), ctypes.c_size_t()
        try:
            with self._use() as pointer, options("generation", given) as made:
                self._on_text = on_text
                try:
                    self._run(lib.swarm_session_generate, ids.ctypes.data, ids.size, made, ctypes.byref(text),
                              ctypes.byref(length), pointer=pointer)
                except errors.Cancelled:
                    if not text.value:
                        raise
                finally:
                    self._on_text = None
            raw = json.loads(ctypes.string_at(text.value, length.value)) if text.value else {}
        finally:
            lib.swarm_free(text)
        return Generation(raw["ids"], raw["text"], raw["finish_reason"], raw)

    def _start(self, ids: NDArray[np.int32], given: Mapping[str, Any], put: Callable[[str | BaseException | None], None]
               ) -> threading.Event:
        """Generates in a thread that puts pieces of text, and at the end None or what was raised; sets the event then."""

        def run() -> None:
            try:
                self._generate(ids, {**self._checked, **given}, put)
                put(None)
            except BaseException as e:
                put(e)

        return begin_thread("swarmnode generation", run, self._cancel)

    def _stream(self, ids: NDArray[np.int32], given: Mapping[str, Any]) -> Iterator[str]:
        pieces: queue.SimpleQueue[str | BaseException | None] = queue.SimpleQueue()
        ended = self._start(ids, given, pieces.put)
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            if not ended.is_set():
                self._cancel.stop(ended)

    async def agenerate(self, prompt: Prompt | None = None, **given: Any) -> AsyncIterator[str]:
        """`generate(stream=True)` for asyncio. When the task is cancelled, the generation ends within a second; who leaves
        the loop early closes it, with `contextlib.aclosing`."""
        import asyncio

        ids, given = self._prompt(prompt, given)
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[str | BaseException | None] = asyncio.Queue()

        def put(piece: str | BaseException | None) -> None:
            loop.call_soon_threadsafe(pieces.put_nowait, piece)

        ended = self._start(ids, given, put)
        try:
            while (piece := await pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            if not ended.is_set():
                await asyncio.shield(asyncio.to_thread(self._cancel.stop, ended))

    def chat(self, messages: Messages, **given: Any) -> dict[str, Any]:
        """The model's answer to a conversation: the message to append to it. A session that has the earlier turns
        computes the new one only. Options as for `generate`."""
        text, ids = self.model.tokenizer._render(messages, None, True, None)
        data = text.encode()
        with self.model._use() as m:
            thinks = bool(lib.swarm_model_prompt_thinks(m, data, len(data)))
        made = self._generate(ids_array(ids), {"answer": True, **given})
        return self.model.tokenizer.read_answer(made.ids, thinks=thinks)

    # -- steps

    def prefill(self, ids: Iterable[int]) -> None:
        """Appends token ids (n) to the timeline and computes them. After a failure the timeline is as before, but for
        Rebuild."""
        self._append(ids_array(ids), None)

    def step(self, ids: int | Iterable[int]) -> NDArray[np.float32]:
        """The same, and returns the logits: (n, vocab) of ids (n), (vocab) of one id."""
        one = isinstance(ids, (int, np.integer))
        array = ids_array([ids] if one else ids)  # type: ignore[list-item, arg-type]
        logits = np.empty((array.size, self.model.vocab), np.float32)
        self._append(array, logits)
        return logits[0] if one else logits

    def _append(self, ids: NDArray[np.int32], logits: NDArray[np.float32] | None) -> None:
        with self._use() as pointer:
            self._run(lib.swarm_session_append, ids.ctypes.data, ids.size,
                      logits.ctypes.data if logits is not None else None, pointer=pointer)

    def sample(self, **given: Any) -> int:
        """The token that follows the timeline, which is not appended. Options as for `generate`."""
        token = ctypes.c_int32()
        with self._use() as pointer, options("generation", given) as made:
            self._run(lib.swarm_session_sample, made, ctypes.byref(token), pointer=pointer)
        return token.value

    @property
    def tokens(self) -> NDArray[np.int32]:
        """A copy of the timeline."""
        n = ctypes.c_size_t()
        with self._use() as pointer:
            at = lib.swarm_session_tokens(pointer, ctypes.byref(n))
            return np.array(np.frombuffer(ctypes.string_at(at, n.value * 4) if at and n.value else b"", np.int32))

    @property
    def position(self) -> int:
        """The length of the timeline in tokens. Setting it to less rewinds."""
        n = ctypes.c_size_t()
        with self._use() as pointer:
            lib.swarm_session_tokens(pointer, ctypes.byref(n))
        return n.value

    @position.setter
    def position(self, n: int) -> None:
        if n < 0:
            raise errors.Refused(f"{n} is no position: positions count from 0")
        with self._use() as pointer:
            self._run(lib.swarm_session_rewind, n, pointer=pointer)

    def forward(self, hidden: Any, position: int, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """Hidden states (n, width) through the session's blocks (option `blocks`), as positions [position, position +
        n). A session that is used so has no tokens. `RemoteBlocks.inference_session` is the comfortable form. out, of the
        shape of hidden, float32, contiguous and writable, receives the result, which is else a new array."""
        array = self.model.rows(hidden)
        if out is None:
            out = np.empty_like(array)
        elif not isinstance(out, np.ndarray) or out.dtype != np.float32 or out.shape != array.shape or not out.flags.carray:
            raise errors.Refused(f"out is a contiguous, writable array of float32 in the shape {array.shape}")
        with self._use() as pointer:
            self._run(lib.swarm_session_forward, position, array.size // self.model.width, array.ctypes.data,
                      out.ctypes.data, pointer=pointer)
        return out

    # -- files, audits, state

    def save(self, path: str | os.PathLike[str], key_path: str | os.PathLike[str], extra: bytes = b"") -> None:
        """Writes tokens, KV cache and `extra` to a file, encrypted with the content of key_path (16 or more random
        bytes)."""
        with self._use() as pointer:
            self._run(lib.swarm_session_save, os.fsencode(path), os.fsencode(key_path), extra, len(extra), pointer=pointer)

    def load(self, path: str | os.PathLike[str], key_path: str | os.PathLike[str]) -> None:
        """Reads such a file into a session that has just been opened: it continues with the same bits."""
        with self._use() as pointer:
            self._run(lib.swarm_session_load, os.fsencode(path), os.fsencode(key_path), pointer=pointer)

    @property
    def extra(self) -> bytes | None:
        """What `save` was given with the loaded file; None: nothing was loaded."""
        n = ctypes.c_size_t()
        with self._use() as pointer:
            at = lib.swarm_session_extra(pointer, ctypes.byref(n))
            return ctypes.string_at(at, n.value) if at else None

    def audit(self) -> None:
        """Checks what the audit has not checked yet. Rebuild: a result was wrong."""
        with self._use() as pointer:
            self._run(lib.swarm_session_audit, pointer=pointer)

    def poll(self) -> None:
        """Work between calls, without waiting: call it each second or so while the session pauses."""
        with self._use() as pointer:
            self._run(lib.swarm_session_poll, pointer=pointer)

    def describe(self) -> dict[str, Any]:
        """Hops, their times, failovers, and the audit's counts."""
        with self._use() as pointer:
            description: dict[str, Any] = json.loads(call_text(lib.swarm_session_describe, pointer))
        return description


def _listener(weak: Callable[[], Session | None]) -> Callable[[int, int], int]:
    """What the library calls with events. The text of a token finds a processor's caches full of weights: its way is short."""
    text_kind, get_kind = int(EventKind.TEXT), lib.swarm_event_get_kind

    def listen(_: int, pointer: int) -> int:
        session = weak()
        if session is None:
            return 0
        try:
            kind = get_kind(pointer)
            if kind == text_kind and session._on_text:
                session._on_text(_text(pointer))
            return _deliver(session, pointer, kind) if session.on_event or kind != text_kind else 0
        except BaseException as e:
            session._raised = session._raised or e
            return 1

    return listen


def _deliver(session: Session, pointer: int, kind: int) -> int:
    """Logs an event, and gives it to the user's listener. What that raises is raised again where the call was made."""
    if not (session.on_event or 1 << kind & _LOGGED):
        return 0
    event = _event(pointer, kind)
    if kind in (EventKind.FAILOVER, EventKind.AUDIT):
        log.warning("%s", event.text)
    elif kind == EventKind.MOVE:
        log.info("%s", event.text)
    return 1 if session.on_event and session.on_event(event) is True else 0
