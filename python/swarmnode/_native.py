"""The calls of libswarm: finding the library, errors as exceptions, options, the life of handles, and Ctrl-C.

A call of ctypes releases the interpreter's lock, so other threads run meanwhile. Python handles signals only between
its own instructions, so a call that may take long runs in a thread of its own when the caller is the main thread,
which waits where Ctrl-C reaches it, sets the cancel flag and passes KeyboardInterrupt on.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from . import _swarm_h, errors

Result = TypeVar("Result")
NAME = "libswarm.so.0"


def _load() -> ctypes.CDLL:
    """The library of this package, unless the variable SWARM_LIBRARY names another one; else the system's."""
    beside = Path(__file__).with_name(NAME)
    name = os.environ.get("SWARM_LIBRARY") or (str(beside) if beside.exists() else NAME)
    try:
        library, holding = ctypes.CDLL(name), ctypes.PyDLL(name)
    except OSError as e:
        raise ImportError(f"{name} cannot be loaded: {e}; install the wheel of swarmnode, or set SWARM_LIBRARY") from None
    for function, (result, parameters) in _swarm_h.FUNCTIONS.items():
        try:
            # Reading an event takes less than releasing the interpreter's lock and waiting for it.
            bound = getattr(holding if function.startswith("swarm_event_") else library, function)
        except AttributeError:
            raise ImportError(f"{name} has no {function}: it is older than this package") from None
        bound.restype, bound.argtypes = result, parameters
        setattr(library, function, bound)
    return library


lib = _load()
_CLASSES: dict[int, type[errors.SwarmError]] = {
    _swarm_h.SWARM_RETRY: errors.RetryElsewhere,
    _swarm_h.SWARM_REBUILD: errors.Rebuild,
    _swarm_h.SWARM_REFUSED: errors.Refused,
    _swarm_h.SWARM_STOP: errors.Stopped,
    _swarm_h.SWARM_CANCELLED: errors.Cancelled,
}


_INTEGERS = {ctypes.c_int, ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_size_t}


def check_integers(function: Callable[..., int], *arguments: Any) -> None:
    """Refuses an integer that its C type does not hold: ctypes would pass its lowest bits, which are another number."""
    for value, kind in zip(arguments, getattr(function, "argtypes", ())):
        if kind in _INTEGERS and isinstance(value, int) and kind(value).value != value:
            raise errors.Refused(f"{value} is out of the range that the library takes")


def call(function: Callable[..., int], *arguments: Any) -> None:
    """Calls a function that returns a swarm_code and takes an error last; raises what the code says."""
    check_integers(function, *arguments)
    error = ctypes.c_void_p()
    code = function(*arguments, ctypes.byref(error))
    if code == _swarm_h.SWARM_OK:
        return
    raised = _CLASSES.get(code, errors.SwarmError)(lib.swarm_error_text(error).decode("utf8", "replace"))
    raised.reason = lib.swarm_error_reason(error).decode()
    if isinstance(raised, errors.RetryElsewhere):
        raised.retry_after = lib.swarm_error_retry_after_ms(error) / 1000 or None
    lib.swarm_error_free(error)
    raise raised


def take_bytes(pointer: ctypes.c_void_p, length: int) -> bytes:
    """Copies what a `char **` parameter received, and frees it."""
    try:
        return ctypes.string_at(pointer.value, length) if pointer.value else b""
    finally:
        lib.swarm_free(pointer)


def take_ids(pointer: ctypes.c_void_p, n: int) -> list[int]:
    """The token ids that an `int32_t **` parameter received; frees it."""
    ids: list[int] = np.frombuffer(take_bytes(pointer, n * 4), np.int32).tolist()
    return ids


def call_text(function: Callable[..., int], *arguments: Any) -> str:
    """Calls a function whose results are a text and its length."""
    text, length = ctypes.c_void_p(), ctypes.c_size_t()
    call(function, *arguments, ctypes.byref(text), ctypes.byref(length))
    return take_bytes(text, length.value).decode("utf8")


def ids_array(ids: Iterable[int], what: str = "token id") -> NDArray[np.int32]:
    """Token ids as the library takes them: a list, an array or a tensor of integers, of one dimension."""
    array = np.asarray(ids)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise errors.Refused(f"{what}s are integers in one dimension, not {array.dtype} in {array.ndim}")
    if array.size and (array.min() < 0 or array.max() > 2**31 - 1):
        raise errors.Refused(f"a {what} is negative or too large")
    return np.ascontiguousarray(array, np.int32)


def begin_thread(name: str, run: Callable[[], None], cancel: "Cancel") -> threading.Event:
    """Runs it in a thread of its own, and sets the event at its end. Ctrl-C may come while the thread begins: then it never
    runs, or has ended."""
    ended = threading.Event()  # Thread.join calls a thread ended that Ctrl-C interrupted it for (bpo-45274)
    turn = [True]  # for who takes it first: the thread, or an interruption

    def begin() -> None:
        try:
            turn.pop()
        except IndexError:
            return
        try:
            run()
        finally:
            ended.set()

    try:
        threading.Thread(target=begin, name=name, daemon=True).start()
    except BaseException:
        try:
            turn.pop()
        except IndexError:
            cancel.stop(ended)
        raise
    return ended


def interruptible(cancel: "Cancel", function: Callable[[], Result]) -> Result:
    """Runs a call that may take long, so that Ctrl-C ends it within a second."""
    if threading.current_thread() is not threading.main_thread():
        return function()
    result: list[Result] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            result.append(function())
        except BaseException as e:
            raised.append(e)

    ended = begin_thread("swarmnode call", run, cancel)
    try:
        ended.wait()
    except BaseException:
        cancel.stop(ended)
        raise
    if raised:
        raise raised[0]
    return result[0]


# -- options


def describe_options(of: str) -> list[dict[str, Any]]:
    """The options of a kind ("connection", "model", "session", "generation", "blocks", "training"): key, value, default,
    repeatable, help."""
    described: list[dict[str, Any]] = json.loads(call_text(lib.swarm_options_describe, of.encode()))
    return described


_keys: dict[str, frozenset[str]] = {}


def option_keys(of: str) -> frozenset[str]:
    """The names of a kind's options as Python's keyword arguments."""
    if of not in _keys:
        _keys[of] = frozenset(o["key"].replace("-", "_") for o in describe_options(of))
    return _keys[of]


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


@contextmanager
def options(of: str, given: Mapping[str, Any]) -> Iterator[ctypes.c_void_p]:
    """Options from keyword arguments: `kv_dtype="f16"` is the key "kv-dtype". None leaves the default, a list or tuple
    gives several values."""
    unknown = given.keys() - option_keys(of)
    if unknown:
        raise errors.Refused(f"{sorted(unknown)[0]} is no option of a {of}: {', '.join(sorted(option_keys(of)))} are")
    made = ctypes.c_void_p(lib.swarm_options_new())
    if not made:
        raise errors.Stopped("memory is out")
    try:
        for key, value in given.items():
            for one in value if isinstance(value, (list, tuple)) else [value]:
                if one is not None:
                    call(lib.swarm_options_set, made, key.replace("_", "-").encode(), _text(one).encode())
        yield made
    finally:
        lib.swarm_options_free(made)


# -- handles


class Cancel:
    """A cancel flag of the library."""

    def __init__(self) -> None:
        self.pointer = ctypes.c_void_p(lib.swarm_cancel_new())
        if not self.pointer:
            raise errors.Stopped("memory is out")
        self._free = weakref.finalize(self, _free, os.getpid(), lib.swarm_cancel_free, self.pointer, None, _Life())
        self._free.atexit = False  # a call may read it to the end of the program

    def set(self) -> None:
        lib.swarm_cancel_set(self.pointer)

    def clear(self) -> None:
        lib.swarm_cancel_clear(self.pointer)

    def stop(self, ended: threading.Event) -> None:
        """Ends the call of another thread and waits until it has ended; further interruptions do not end the wait."""
        if sys.is_finalizing():  # other threads do not run any more
            return
        self.set()
        interrupted: BaseException | None = None
        while not ended.is_set():
            try:
                ended.wait()
            except BaseException as e:
                interrupted = e
        self.clear()
        if interrupted:
            raise interrupted


class _Life:
    """How many need a handle: its owner, calls in progress, and what was made from it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # the collector may free what was made from a handle while this thread holds it
        self.users, self.closed = 1, False


def _free(process: int, function: Callable[[ctypes.c_void_p], None], pointer: ctypes.c_void_p, parents: Any,
          life: _Life) -> None:
    """Frees a handle, in the process that made it only; then lets go of what the handle borrowed. At the end of the
    program a handle that another thread still computes with is not freed."""
    if os.getpid() != process:
        return
    with life.lock:
        if life.users > (0 if life.closed else 1):  # an owner that has closed it counts no more
            return
        life.closed = True
    function(pointer)
    for parent in parents or ():
        parent._release()


class Handle:
    """Something of the library that is open until `close()`, or the end of `with`, or until nothing refers to it.

    It cannot be pickled, and after a fork only the parent may use it: a child opens its own."""

    _what = "object"
    _exclusive = False  # one thread at a time

    def _begin(self, pointer: ctypes.c_void_p, close: Callable[[ctypes.c_void_p], None], *borrowed: "Handle | None") -> None:
        """Takes a handle; what it was made from stays open as long."""
        self._pointer, self._process = pointer, os.getpid()
        self._life, self._call = _Life(), threading.Lock()
        parents = [b for b in borrowed if b is not None]
        for parent in parents:
            parent._retain()
        self._end = weakref.finalize(self, _free, self._process, close, pointer, parents, self._life)

    def _retain(self) -> ctypes.c_void_p:
        if not hasattr(self, "_process"):
            raise errors.Refused(f"this {self._what} was not opened")
        if os.getpid() != self._process:
            raise errors.Refused(f"this {self._what} belongs to the process that opened it: after a fork, open another one")
        with self._life.lock:
            closed = self._life.closed
            self._life.users += not closed
        if closed:
            raise errors.Refused(f"this {self._what} is closed")
        return self._pointer

    def _release(self) -> None:
        with self._life.lock:
            self._life.users -= 1
            last = self._life.users == 0
        if last:
            self._end()

    @contextmanager
    def _use(self) -> Iterator[ctypes.c_void_p]:
        """The handle for a call, during which it is not freed."""
        pointer = self._retain()
        try:
            if self._exclusive and not self._call.acquire(blocking=False):
                raise errors.Refused(f"this {self._what} is at work: it takes one call at a time, from any thread")
            try:
                yield pointer
            finally:
                if self._exclusive:
                    self._call.release()
        finally:
            self._release()

    def close(self) -> None:
        """Closes it when the calls in progress have ended, and what was made from it was closed. May be repeated."""
        if not hasattr(self, "_process") or os.getpid() != self._process:
            return
        with self._life.lock:
            closed, self._life.closed = self._life.closed, True
        if not closed:
            self._release()

    @property
    def closed(self) -> bool:
        return not hasattr(self, "_life") or self._life.closed

    def __enter__(self: "HandleType") -> "HandleType":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(f"a {self._what} cannot be pickled: open another one where it is needed")


HandleType = TypeVar("HandleType", bound=Handle)
