"""Ranges of remote blocks as functions of hidden states."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import errors
from ._native import Cancel, Handle, call, describe_options, ids_array, interruptible, lib, option_keys, options
from .model import Adapter, Model
from .session import Session


class RemoteBlocks(Handle):
    """Blocks [first, end) of a model, frozen, computed by its swarm. One call at a time, from any thread.

    `blocks(x)` takes hidden states (batch, tokens, width) or (tokens, width) of float32 through them, as numpy arrays or
    torch tensors; sequences begin at position 0 and do not see each other. With torch it is differentiable.
    `len(blocks)`, `blocks[2:5]` and `blocks[3]` count from `first`.

    With method="lora" (rank, alpha, targets) or "deep-prompt" (virtual_tokens) they hold values to train:
    `swarmnode.nn.RemoteSequential` makes them a torch module. With "prompt" they hold none: virtual tokens are the caller's.
    Other options: `describe_options("blocks")`."""

    _what = "range of blocks"
    _exclusive = True

    def __init__(self, model: Model, first: int = 0, end: int | None = None, **given: Any) -> None:
        end = model.blocks if end is None else end
        if not 0 <= first < end <= model.blocks:
            raise errors.Refused(f"blocks {first}:{end}: this model has blocks 0:{model.blocks}")
        self.model, self.first, self.end, self.options = model, first, end, dict(given)
        self._cancel = Cancel()
        self.sent: NDArray[np.float32] | None = None  # the values that were set last; None: not known
        pointer = ctypes.c_void_p()
        with model._use() as m, options("blocks", {**given, "blocks": f"{first}:{end}"}) as made:
            swarm = model.swarm._retain() if model.swarm else None
            try:
                interruptible(self._cancel, lambda: call(lib.swarm_blocks_open, m, swarm, made, self._cancel.pointer,
                                                         ctypes.byref(pointer)))
                self._begin(pointer, lib.swarm_blocks_close, model, model.swarm)
            finally:
                if model.swarm:
                    model.swarm._release()
        self.n_values: int = lib.swarm_blocks_parameters(pointer)
        """How many floats there are to train; 0: no method was given, or "prompt"."""

    def __len__(self) -> int:
        return self.end - self.first

    def __getitem__(self, which: int | slice) -> RemoteBlocks:
        if isinstance(which, slice):
            first, end, stride = which.indices(len(self))
            if stride != 1 or first >= end:
                raise errors.Refused("a slice of blocks has at least one block, and all of its range")
        else:
            first = range(len(self))[which]
            end = first + 1
        return RemoteBlocks(self.model, self.first + first, self.first + end, **self.options)

    def _run(self, function: Any, *arguments: Any) -> None:
        with self._use() as pointer:
            try:
                interruptible(self._cancel, lambda: call(function, pointer, *arguments))
            finally:
                self._cancel.clear()

    def cancel(self) -> None:
        """Ends the call in progress, or else the next one, from any thread, within a second: it raises Cancelled."""
        self._cancel.set()

    # -- values to train

    @property
    def values(self) -> NDArray[np.float32]:
        """The values to train (n_values), in the order of docs/FINE-TUNING.md; initially those of `swarm tune`. Setting
        them sends them to the nodes with the next call."""
        values = np.empty(self.n_values, np.float32)
        self._run(lib.swarm_blocks_get, values.ctypes.data)
        return values

    @values.setter
    def values(self, values: Any) -> None:
        array = np.ascontiguousarray(values, np.float32)
        if array.shape != (self.n_values,):
            raise errors.Refused(f"these blocks have {self.n_values} values, not {array.shape}")
        self.sent = None  # also when the call fails
        self._run(lib.swarm_blocks_set, array.ctypes.data)

    def option(self, key: str) -> Any:
        """An option as it was given, else its default as text; None: it has none."""
        given = self.options.get(key)
        if given is None:
            given = next(o["default"] for o in describe_options("blocks") if o["key"] == key.replace("_", "-"))
        return given

    @property
    def virtual_tokens(self) -> int:
        """How many stand before the text, with the methods "prompt" and "deep-prompt"; else 0."""
        return int(self.option("virtual_tokens")) if self.options.get("method") in ("prompt", "deep-prompt") else 0

    # -- adapters

    def _virtual_rows(self, prompt: Any) -> NDArray[np.float32] | None:
        if prompt is None:
            return None
        rows = self.model.rows(prompt)
        if rows.shape != (self.virtual_tokens, self.model.width):
            raise errors.Refused(f"these blocks have {self.virtual_tokens} virtual tokens of {self.model.width}, not {rows.shape}")
        return rows

    def adapter(self, prompt: Any = None) -> Adapter:
        """The present values as an adapter for sessions of the model: a copy. prompt (virtual_tokens, width): the virtual
        tokens that a session puts before its text, with the methods "prompt" and "deep-prompt"; None: there are none, and
        deep prompts are added to the first rows, as in `blocks(hidden)`."""
        rows, pointer = self._virtual_rows(prompt), ctypes.c_void_p()
        self._run(lib.swarm_blocks_adapter, None if rows is None else rows.ctypes.data, ctypes.byref(pointer))
        return Adapter._made(self.model, pointer)

    def save_adapter(self, folder: str | os.PathLike[str], prompt: Any = None) -> None:
        """Writes the present values into a folder for `Adapter`, `swarm generate --adapter` and, with LoRA and virtual
        tokens alone, PEFT. prompt: as of `adapter`; deep prompts need it, too."""
        rows = self._virtual_rows(prompt)
        self._run(lib.swarm_blocks_save, None if rows is None else rows.ctypes.data, os.fsencode(folder))

    # -- passes

    def sequences(self, shape: Sequence[int], lengths: Sequence[int] | None = None) -> NDArray[np.int32]:
        """The rows of each sequence of hidden states of this shape. lengths: of sequences that stand one after another
        in (rows, width); else all have the same."""
        rows = int(np.prod(shape[:-1]))
        if lengths is None:
            n = np.full(int(np.prod(shape[:-2])) if len(shape) > 2 else 1, shape[-2] if len(shape) > 1 else 1, np.int32)
        else:
            n = ids_array(lengths, "length").copy()  # the caller may change its array before the backward pass
        if int(n.sum()) != rows:
            raise errors.Refused(f"sequences of {n.tolist()} rows are not the {rows} rows that were given")
        return n

    def __call__(self, hidden: Any, lengths: Sequence[int] | None = None) -> Any:
        """The output of the last block, of the kind and shape of `hidden`. lengths: the rows of each sequence, where
        sequences of several lengths stand one after another in (rows, width)."""
        if type(hidden).__module__.partition(".")[0] == "torch":
            from .nn import remote_forward

            return remote_forward(self, hidden, None, lengths)
        return self.forward(hidden, lengths)

    def forward(self, hidden: Any, lengths: Sequence[int] | None = None) -> NDArray[np.float32]:
        """`blocks(hidden)` for numpy. No copy is made of a contiguous array; the result is written where it stands."""
        array = self.model.rows(hidden)
        out = np.empty_like(array)
        n = self.sequences(array.shape, lengths)
        self.forward_at(n, array.ctypes.data, out.ctypes.data)
        return out

    def backward(self, hidden: Any, out_gradient: Any, lengths: Sequence[int] | None = None
                 ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """From the gradient of the output that of `hidden` (its shape) and that of `values` (n_values), summed over the
        sequences. It computes the forward pass again: nodes keep nothing between the two calls."""
        array, given = self.model.rows(hidden), self.model.rows(out_gradient)
        if array.shape != given.shape:
            raise errors.Refused(f"hidden states {array.shape} have a gradient of {given.shape}")
        gradient, values = np.empty_like(array), np.empty(self.n_values, np.float32)
        n = self.sequences(array.shape, lengths)
        self.backward_at(n, array.ctypes.data, given.ctypes.data, gradient.ctypes.data, values.ctypes.data)
        return gradient, values

    def forward_at(self, lengths: NDArray[np.int32], hidden: int, out: int) -> None:
        """`forward` of arrays by their addresses, which must not overlap."""
        self._run(lib.swarm_blocks_forward, lengths.size, lengths.ctypes.data, hidden, out)

    def backward_at(self, lengths: NDArray[np.int32], hidden: int, out_gradient: int, gradient: int, values: int) -> None:
        """`backward` of arrays by their addresses, which must not overlap."""
        self._run(lib.swarm_blocks_backward, lengths.size, lengths.ctypes.data, hidden, out_gradient, gradient,
                  values if self.n_values else None)

    def inference_session(self, max_length: int | None = None, **given: Any) -> InferenceSession:
        """A KV cache over these blocks, for decoding: `session.step(hidden)` continues where the last step ended. It
        computes with the values as they are now, and over nodes that these blocks may use."""
        made = {"adapter": self.adapter()} if self.n_values else {}
        return InferenceSession(self.model, self.first, self.end, max_length=max_length,
                                **{**made, **self.session_options(), **given})

    def session_options(self) -> dict[str, Any]:
        """Of the options of these blocks those that sessions have, too."""
        return {key: value for key, value in self.options.items() if key in option_keys("session") - {"blocks"}}

    def __repr__(self) -> str:
        return f"<swarmnode.RemoteBlocks {self.first}:{self.end} of {self.model.path}>"


class InferenceSession:
    """Hidden states through a range of blocks, step by step, with a KV cache of max_length positions.

    The first step decides the batch. Options: `describe_options("session")`."""

    def __init__(self, model: Model, first: int, end: int, *, max_length: int | None = None, **given: Any) -> None:
        self.model, self._given = model, {**given, "blocks": f"{first}:{end}", "max_length": max_length}
        self._sessions = [Session(model, **self._given)]
        self._position = 0

    def step(self, hidden: Any) -> Any:
        """The output (batch, tokens, width) of hidden states (batch, tokens, width), as the positions that follow;
        without the batch: (tokens, width). numpy or torch (without gradients)."""
        torch = type(hidden).__module__.partition(".")[0] == "torch"
        array = self.model.rows(hidden.detach().cpu().numpy() if torch else hidden)
        if array.ndim not in (2, 3):
            raise errors.Refused(f"hidden states have the shape (batch, tokens, width), not {array.shape}")
        batch = array if array.ndim == 3 else array[None]
        if self._position == 0:
            self._sessions += [Session(self.model, **self._given) for _ in range(len(batch) - len(self._sessions))]
        if len(batch) != len(self._sessions):
            raise errors.Refused(f"this session has a batch of {len(self._sessions)}, not {len(batch)}")
        out = np.empty_like(batch)
        for session, rows, of_rows in zip(self._sessions, batch, out):
            session.forward(rows, self._position, of_rows)
        self._position += batch.shape[1]
        out = out if array.ndim == 3 else out[0]
        if torch:
            from .nn import like

            return like(out, hidden)
        return out

    @property
    def position(self) -> int:
        """How many positions were computed. Setting it to less rewinds."""
        return self._position

    @position.setter
    def position(self, position: int) -> None:
        if not 0 <= position <= self._position:
            raise errors.Refused(f"{position} is no position of a session that computed {self._position}")
        self._position = position

    def close(self) -> None:
        for session in self._sessions:
            session.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
