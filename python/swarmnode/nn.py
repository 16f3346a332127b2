"""Remote blocks as a PyTorch module: `torch.autograd` goes through them, and their LoRA or deep prompts are parameters.

Hidden states travel as float32 in host memory; a contiguous tensor of the CPU is not copied on its way to the library.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from . import errors
from .blocks import InferenceSession, RemoteBlocks
from .model import Adapter, Model


def like(array: np.ndarray[Any, Any], tensor: torch.Tensor) -> torch.Tensor:
    """An array as a tensor where another one is."""
    return torch.from_numpy(array).to(tensor.device)


def _rows(tensor: torch.Tensor, width: int) -> torch.Tensor:
    """Hidden states (..., width) as the library reads them."""
    if tensor.dtype != torch.float32:
        raise errors.Refused(f"hidden states are float32, not {tensor.dtype}: convert them with .float()")
    if tensor.ndim < 1 or tensor.shape[-1] != width:
        raise errors.Refused(f"hidden states have the shape (..., {width}), not {tuple(tensor.shape)}")
    return tensor.detach().cpu().contiguous()


def _array(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else tensor.detach().cpu().numpy()


def _send(blocks: RemoteBlocks, values: torch.Tensor) -> None:
    """Gives the blocks values to compute with, unless they have them."""
    array = _array(values)
    if blocks.sent is None or not np.array_equal(blocks.sent, array):
        blocks.values = array
        blocks.sent = array.copy()


class _Remote(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, values: torch.Tensor | None, blocks: RemoteBlocks,
                lengths: np.ndarray[Any, Any]) -> torch.Tensor:
        rows = _rows(hidden, blocks.model.width)
        out = torch.empty_like(rows)
        if values is not None:
            _send(blocks, values)
        blocks.forward_at(lengths, rows.data_ptr(), out.data_ptr())
        ctx.save_for_backward(hidden, values)
        ctx.blocks, ctx.lengths = blocks, lengths
        return out.to(hidden.device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, out_gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        hidden, values = ctx.saved_tensors
        blocks: RemoteBlocks = ctx.blocks
        rows, given = _rows(hidden, blocks.model.width), _rows(out_gradient, blocks.model.width)
        gradient, of_values = torch.empty_like(rows), torch.empty(blocks.n_values, dtype=torch.float32, device="cpu")
        if values is not None:
            _send(blocks, values)
        blocks.backward_at(ctx.lengths, rows.data_ptr(), given.data_ptr(), gradient.data_ptr(), of_values.data_ptr())
        return gradient.to(hidden.device), None if values is None else of_values.to(values.device), None, None


def remote_forward(blocks: RemoteBlocks, hidden: torch.Tensor, values: torch.Tensor | None,
                   lengths: Sequence[int] | None = None) -> torch.Tensor:
    """Hidden states (batch, tokens, width), (tokens, width), or with lengths (rows, width), through blocks.
    Differentiable for `hidden`, and for `values` (n_values), which the blocks compute with when they are given."""
    made: torch.Tensor = _Remote.apply(hidden, values, blocks, blocks.sequences(tuple(hidden.shape), lengths))
    return made


class _Logits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, model: Model) -> torch.Tensor:
        ctx.save_for_backward(hidden)
        ctx.model = model
        return like(model.logits(_rows(hidden, model.width).numpy()), hidden)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        (hidden,) = ctx.saved_tensors
        rows, of_logits = _rows(hidden, ctx.model.width), _rows(gradient, ctx.model.vocab)
        return like(ctx.model.logits_backward(rows.numpy(), of_logits.numpy()), hidden), None


def logits(model: Model, hidden: torch.Tensor) -> torch.Tensor:
    """Logits (..., vocab) of hidden states (..., width) as they leave the last block; differentiable."""
    made: torch.Tensor = _Logits.apply(hidden, model)
    return made


def embed(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """Embeddings (..., width) of token ids (...)."""
    return torch.from_numpy(model.embed(ids.cpu().numpy())).to(ids.device)


class RemoteSequential(torch.nn.Module):
    """Blocks [first, end) of a model as a module: hidden states (batch, tokens, width) of float32 in and out.

    With method="lora" (rank, alpha, targets) or "deep-prompt" (virtual_tokens), `values` is their trainable parameter,
    initially that of `swarm tune` (seed); `named_values` shows its parts, `adapter` and `save_adapter` give them to sessions
    and keep them. Other options: `describe_options("blocks")`.
    """

    def __init__(self, model: Model, first: int = 0, end: int | None = None, **given: Any) -> None:
        super().__init__()
        self.blocks = RemoteBlocks(model, first, end, **given)
        self.values: torch.nn.Parameter | None = None
        if self.blocks.n_values:
            self.values = torch.nn.Parameter(torch.from_numpy(self.blocks.values))

    def forward(self, hidden: torch.Tensor, lengths: Sequence[int] | None = None) -> torch.Tensor:
        """lengths: the rows of each sequence, where sequences of several lengths stand one after another in (rows,
        width)."""
        return remote_forward(self.blocks, hidden, self.values, lengths)

    def named_values(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The parts of `values` by name ("3.q.A": rank x inputs, "3.q.B": outputs x rank, "3.prompt": tokens x width),
        as views of its data."""
        if self.values is None:
            return
        at = 0
        for name, shape in self._parts():
            n = shape[0] * shape[1]
            yield name, self.values.data[at : at + n].view(shape)
            at += n

    def _parts(self) -> Iterator[tuple[str, tuple[int, int]]]:
        blocks = self.blocks
        hp = blocks.model.describe()["hparams"]
        width, ff, heads, kv = hp["n_embd"], hp["n_ff"], hp["n_heads"] * hp["head_dim"], hp["n_kv_heads"] * hp["head_dim"]
        sizes = {"q": (width, heads), "k": (width, kv), "v": (width, kv), "o": (heads, width), "gate": (width, ff),
                 "up": (width, ff), "down": (ff, width)}
        rank, targets = int(blocks.option("rank")), str(blocks.option("targets"))
        for block in range(blocks.first, blocks.end):
            if blocks.virtual_tokens:
                if block:  # what enters block 0 are the virtual tokens themselves
                    yield f"{block}.prompt", (blocks.virtual_tokens, width)
                continue
            for target, (inputs, outputs) in sizes.items():
                if targets == "all" or target in targets.split(","):
                    yield f"{block}.{target}.A", (rank, inputs)
                    yield f"{block}.{target}.B", (outputs, rank)

    def inference_session(self, max_length: int | None = None, **given: Any) -> InferenceSession:
        """A KV cache over these blocks with `values` as they are now, for decoding hidden states step by step."""
        self._send_values()
        return self.blocks.inference_session(max_length, **given)

    def adapter(self, prompt: torch.Tensor | None = None) -> Adapter:
        """`values` as they are now as an adapter for sessions of the model: a copy. prompt (virtual_tokens, width): the
        virtual tokens that a session puts before its text, with the methods "prompt" and "deep-prompt"; None: there are
        none, and deep prompts are added to the first rows, as in a forward pass."""
        self._send_values()
        return self.blocks.adapter(_array(prompt))

    def save_adapter(self, folder: str | os.PathLike[str], prompt: torch.Tensor | None = None) -> None:
        """Writes `values` into a folder for `swarmnode.Adapter`, `swarm generate --adapter` and, with LoRA and virtual tokens
        alone, PEFT. prompt: as of `adapter`; deep prompts need it, too."""
        self._send_values()
        self.blocks.save_adapter(folder, _array(prompt))

    def _send_values(self) -> None:
        if self.values is not None:
            _send(self.blocks, self.values)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, which: int | slice) -> RemoteSequential:
        """Some of the blocks, with values of their own."""
        some = self.blocks[which]
        return RemoteSequential(some.model, some.first, some.end, **some.options)
