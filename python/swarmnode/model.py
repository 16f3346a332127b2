"""A model: tokenizer, chat template, embedding and LM head; the blocks are computed by nodes, or here."""

from __future__ import annotations

import contextlib
import ctypes
import json
import logging
import os
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
from numpy.typing import NDArray

from . import _swarm_h, errors
from ._native import (Handle, call, call_text, check_integers, ids_array, lib, option_keys, options, take_bytes,
                      take_ids)
from .swarm import Swarm

if TYPE_CHECKING:
    from .session import Generation, Session

Messages = Sequence[Mapping[str, Any]]
Prompt = str | Messages | Iterable[int]


class Tokenizer:
    """The tokenizer and the chat template of a model."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def encode(self, text: str, *, begins: bool = True, special: bool = False) -> list[int]:
        """The token ids of a text. begins: it is the beginning of a timeline (with the begin-of-sequence token, if the
        model wants one). special: special tokens that are spelled out count as such; never for text of strangers."""
        flags = (_swarm_h.SWARM_TEXT_BEGINS if begins else 0) | (_swarm_h.SWARM_TEXT_SPECIAL if special else 0)
        data, ids, n = text.encode(), ctypes.c_void_p(), ctypes.c_size_t()
        with self._model._use() as model:
            call(lib.swarm_model_tokenize, model, data, len(data), flags, ctypes.byref(ids), ctypes.byref(n))
        return take_ids(ids, n.value)

    def decode(self, ids: Iterable[int], *, special: bool = False) -> str:
        """The text of token ids. special: special tokens are spelled out, else left out."""
        array = ids_array(ids)
        with self._model._use() as model:
            return call_text(lib.swarm_model_detokenize, model, array.ctypes.data, array.size,
                             _swarm_h.SWARM_TEXT_SPECIAL if special else 0)

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The exact bytes of one token, which need not be whole UTF-8."""
        data, length = ctypes.c_void_p(), ctypes.c_size_t()
        with self._model._use() as model:
            call(lib.swarm_model_token_bytes, model, token, _swarm_h.SWARM_TEXT_SPECIAL if special else 0,
                 ctypes.byref(data), ctypes.byref(length))
        return take_bytes(data, length.value)

    def ends(self, token: int) -> bool:
        """Whether a token ends a text or a turn."""
        with self._model._use() as model:
            check_integers(lib.swarm_model_ends, model, token)
            return bool(lib.swarm_model_ends(model, token))

    def _render(self, messages: Messages, tools: Sequence[Any] | None, answer: bool,
                variables: Mapping[str, Any] | None) -> tuple[str, list[int]]:
        request = {"messages": list(messages), "add_generation_prompt": answer}
        request |= {"tools": list(tools)} if tools else {}
        request |= {"variables": dict(variables)} if variables else {}
        data = json.dumps(request).encode()
        text, length, ids, n = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_void_p(), ctypes.c_size_t()
        with self._model._use() as model:
            call(lib.swarm_model_render_chat, model, data, len(data), ctypes.byref(text), ctypes.byref(length),
                 ctypes.byref(ids), ctypes.byref(n))
        return take_bytes(text, length.value).decode(), take_ids(ids, n.value)

    @overload
    def apply_chat_template(self, messages: Messages, *, tools: Sequence[Any] | None = ...,
                            add_generation_prompt: bool = ..., tokenize: Literal[True] = ...,
                            variables: Mapping[str, Any] | None = ...) -> list[int]: ...

    @overload
    def apply_chat_template(self, messages: Messages, *, tools: Sequence[Any] | None = ...,
                            add_generation_prompt: bool = ..., tokenize: Literal[False],
                            variables: Mapping[str, Any] | None = ...) -> str: ...

    def apply_chat_template(self, messages: Messages, *, tools: Sequence[Any] | None = None,
                            add_generation_prompt: bool = True, tokenize: bool = True,
                            variables: Mapping[str, Any] | None = None) -> list[int] | str:
        """The prompt of a conversation, as token ids, or with tokenize=False as text. messages: [{"role", "content"}];
        variables: for the template. Text of the messages never becomes special tokens in the ids."""
        text, ids = self._render(messages, tools, add_generation_prompt, variables)
        return ids if tokenize else text

    def read_answer(self, ids: Iterable[int], *, tools: Sequence[Any] | None = None, thinks: bool = False,
                    ends: bool = True) -> dict[str, Any]:
        """The message that a generated answer is: {"role": "assistant", "content"} and, where there are any,
        "reasoning_content" and "tool_calls". thinks: the answer begins within a thought. ends: it is whole."""
        array = ids_array(ids)
        data = json.dumps(list(tools)).encode() if tools else None
        flags = (_swarm_h.SWARM_ANSWER_ENDS if ends else 0) | (_swarm_h.SWARM_ANSWER_THINKS if thinks else 0)
        with self._model._use() as model:
            message: dict[str, Any] = json.loads(
                call_text(lib.swarm_model_read_answer, model, data, len(data or b""), flags, array.ctypes.data, array.size))
        return message


def _places() -> dict[str, str | None]:
    """Where models are fetched from and to, as the programs take it from the environment."""
    env = os.environ.get
    caches = env("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    hugging_face = env("HF_HOME") or os.path.join(caches, "huggingface")
    token = env("HF_TOKEN")
    if not token:
        with contextlib.suppress(OSError), open(os.path.join(hugging_face, "token")) as file:
            token = file.read().strip()
    return {"cache": env("SWARM_CACHE") or os.path.join(caches, "swarm-node"), "hub": env("HF_ENDPOINT") or None,
            "hub_token": token or None, "hub_cache": env("HF_HUB_CACHE") or os.path.join(hugging_face, "hub")}


class Model(Handle):
    """What a client needs of a model besides its blocks. Any number of threads may use it.

    swarm: the nodes that compute the blocks; None: this process computes all of them.
    path: a GGUF file, or a folder with config.json, safetensors files and tokenizer.json; or, to fetch what is needed of
    it, ORG/NAME[:FILE][@REVISION] of a hub or the URL of a GGUF file. Caches and hub are then those of the programs
    (SWARM_CACHE, HF_HOME, HF_ENDPOINT, HF_TOKEN), unless options say otherwise.
    Options: threads, device, parts, ... (`describe_options("model")`)."""

    _what = "model"

    def __init__(self, swarm: Swarm | None, path: str | os.PathLike[str], **given: Any) -> None:
        pointer = ctypes.c_void_p()
        self.swarm, self.path = swarm, os.fspath(path)
        with options("model", given if os.path.exists(self.path) else _places() | given) as made:
            call(lib.swarm_model_open, os.fsencode(self.path), made, ctypes.byref(pointer))
        self._begin(pointer, lib.swarm_model_close, swarm)
        self.blocks: int = lib.swarm_model_blocks(pointer)
        """How many transformer blocks it has."""
        self.width: int = lib.swarm_model_width(pointer)
        """How many floats a hidden state has."""
        self.vocab: int = lib.swarm_model_vocab(pointer)
        """How many logits a token has; token ids are below it."""
        self.context: int = lib.swarm_model_context(pointer)
        """How many tokens the longest timeline has."""
        self.tokenizer = Tokenizer(self)

    def describe(self) -> dict[str, Any]:
        """What the model is, as `swarm inspect --json` prints it."""
        with self._use() as pointer:
            description: dict[str, Any] = json.loads(call_text(lib.swarm_model_describe, pointer))
        return description

    # -- sessions and texts

    def session(self, **given: Any) -> Session:
        """A new timeline of tokens (`Session`)."""
        from .session import Session

        return Session(self, **given)

    def prompt_ids(self, prompt: Prompt) -> tuple[list[int], bool]:
        """The token ids of a prompt (a text, messages, or ids), and whether an answer is expected."""
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt), False
        if not isinstance(prompt, Iterable):
            raise errors.Refused(f"a prompt is a text, messages or token ids, and no {type(prompt).__name__}")
        listed = list(prompt)
        if listed and isinstance(listed[0], Mapping):
            return self.tokenizer._render(listed, None, True, None)[1], True  # type: ignore[arg-type]
        return ids_array(listed).tolist(), False  # type: ignore[arg-type]

    def _options_of_both(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        generation = {k: v for k, v in given.items() if k in option_keys("generation")}
        return {k: v for k, v in given.items() if k not in generation}, generation

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[True], **given: Any) -> Iterator[str]: ...

    @overload
    def generate(self, prompt: Prompt, *, stream: Literal[False] = ..., **given: Any) -> Generation: ...

    def generate(self, prompt: Prompt, *, stream: bool = False, **given: Any) -> Generation | Iterator[str]:
        """Continues a text, token ids, or a conversation, in a session of its own.

        stream: pieces of text as they are final, whole characters; leaving the loop ends the generation. Options are
        those of generation (max_tokens, temperature, seed, stop, ...) and of sessions (local, draft, audit, ...)."""
        if stream:
            return self._stream(prompt, given)
        for_session, for_generation = self._options_of_both(given)
        with self.session(**for_session) as session:
            generation: Generation = session.generate(prompt, **for_generation)
        return generation

    def _stream(self, prompt: Prompt, given: Mapping[str, Any]) -> Iterator[str]:
        for_session, for_generation = self._options_of_both(given)
        with self.session(**for_session) as session:
            yield from session.generate(prompt, stream=True, **for_generation)

    async def agenerate(self, prompt: Prompt, **given: Any) -> AsyncIterator[str]:
        """`generate(stream=True)` for asyncio: `async for text in model.agenerate(...)`."""
        import asyncio

        for_session, for_generation = self._options_of_both(given)
        session = await asyncio.to_thread(lambda: self.session(**for_session))
        try:
            async for text in session.agenerate(prompt, **for_generation):
                yield text
        finally:
            await asyncio.to_thread(session.close)

    def chat(self, messages: Messages, **given: Any) -> dict[str, Any]:
        """The model's answer to a conversation: the message to append to it. Options as for `generate`."""
        for_session, for_generation = self._options_of_both(given)
        with self.session(**for_session) as session:
            return session.chat(messages, **for_generation)

    # -- the ends of the model

    def embed(self, ids: Any) -> NDArray[np.float32]:
        """Embeddings (..., width) of token ids (...), as they enter block 0."""
        shape = np.shape(ids)
        array = ids_array(np.reshape(np.asarray(ids), -1))
        out = np.empty((array.size, self.width), np.float32)
        with self._use() as pointer:
            call(lib.swarm_model_embed, pointer, array.ctypes.data, array.size, out.ctypes.data)
        return out.reshape(*shape, self.width)

    def rows(self, hidden: Any, width: int | None = None, what: str = "hidden states") -> NDArray[np.float32]:
        """Checks an array (..., width) of float32; without a copy when it is contiguous."""
        array, width = np.asarray(hidden), width or self.width
        if array.dtype != np.float32:
            raise errors.Refused(f"{what} are float32, not {array.dtype}: convert them")
        if array.ndim < 1 or array.shape[-1] != width:
            raise errors.Refused(f"{what} have the shape (..., {width}), not {array.shape}")
        return np.ascontiguousarray(array)

    def logits(self, hidden: Any) -> NDArray[np.float32]:
        """Logits (..., vocab) of hidden states (..., width) as they leave the last block: final norm and LM head."""
        array = self.rows(hidden)
        out = np.empty((*array.shape[:-1], self.vocab), np.float32)
        with self._use() as pointer:
            call(lib.swarm_model_logits, pointer, array.ctypes.data, array.size // self.width, out.ctypes.data)
        return out

    def norm(self, hidden: Any) -> NDArray[np.float32]:
        """Hidden states (..., width) as they leave the last block, after the final norm: what embeddings are made of."""
        array = self.rows(hidden)
        out = np.empty_like(array)
        with self._use() as pointer:
            call(lib.swarm_model_norm, pointer, array.ctypes.data, array.size // self.width, out.ctypes.data)
        return out

    def logits_backward(self, hidden: Any, logits_gradient: Any) -> NDArray[np.float32]:
        """The gradient of hidden states (..., width) from that of their logits (..., vocab)."""
        array, gradient = self.rows(hidden), self.rows(logits_gradient, self.vocab, "gradients of logits")
        if array.shape[:-1] != gradient.shape[:-1]:
            raise errors.Refused(f"{array.shape[:-1]} hidden states have gradients of {gradient.shape[:-1]} logits")
        out = np.empty_like(array)
        with self._use() as pointer:
            call(lib.swarm_model_logits_backward, pointer, array.ctypes.data, array.size // self.width,
                 gradient.ctypes.data, out.ctypes.data)
        return out

    def __repr__(self) -> str:
        return f"<swarmnode.Model {self.path}: {self.blocks} blocks of {self.width}{', closed' if self.closed else ''}>"


class Adapter(Handle):
    """An adapter for sessions: a folder (of `swarm tune`, `save_adapter` or PEFT), or "name:NAME" of one that nodes publish.
    `RemoteBlocks.adapter` makes one of the values that blocks train."""

    _what = "adapter"

    def __init__(self, model: Model, name: str | os.PathLike[str]) -> None:
        pointer = ctypes.c_void_p()
        with model._use() as m:
            swarm = model.swarm._pointer if model.swarm else None
            call(lib.swarm_adapter_open, m, swarm, os.fsencode(os.fspath(name)), ctypes.byref(pointer))
        self._begin(pointer, lib.swarm_adapter_close, model)
        warning = lib.swarm_adapter_warning(pointer)
        if warning:
            logging.getLogger("swarmnode").warning("%s", warning.decode())

    @classmethod
    def _made(cls, model: Model, pointer: ctypes.c_void_p) -> Adapter:
        """One that the library has made."""
        adapter = cls.__new__(cls)
        adapter._begin(pointer, lib.swarm_adapter_close, model)
        return adapter
