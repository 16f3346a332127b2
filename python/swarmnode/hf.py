"""A model of transformers whose blocks a swarm computes: `generate()`, pipelines, Trainer and PEFT's prompt tuning take it.

It has no cache of transformers: `generate()` gives the whole sequence with every token, and timelines of the swarm, which
know what they computed, compute only what is new.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from . import errors, nn
from .model import Model
from .session import Session
from .swarm import Swarm

TIMELINES_MAX = 16  # that are kept between calls; a batch may have more


class _Timeline:
    """A session of the swarm, and the row that it computed: token ids (n), or embeddings (n, width)."""

    def __init__(self, model: Model, given: dict[str, Any]) -> None:
        self.session, self.model = Session(model, **given), model
        self._hidden: np.ndarray[Any, Any] | None = None

    @property
    def row(self) -> np.ndarray[Any, Any]:
        return self.session.tokens if self._hidden is None else self._hidden

    def logits(self, row: np.ndarray[Any, Any], shared: int) -> np.ndarray[Any, Any]:
        """Those (vocab) of the row's last place; of its first `shared` places the session knows the result."""
        at = min(shared, len(row) - 1)
        if row.ndim == 1:
            self.session.position = at
            self.session.prefill(row[at:-1])
            return self.session.step(int(row[-1]))
        out = self.session.forward(row[at:], at)
        self._hidden = row
        return self.model.logits(out[-1])


class _Timelines:
    """KV caches of rows of batches: each row continues the one that has most of it."""

    def __init__(self, model: Model, **given: Any) -> None:
        self._model, self._given, self._kept = model, given, list[_Timeline]()

    def logits(self, rows: Sequence[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
        """Logits (rows, vocab) of the last place of rows of token ids or embeddings."""
        free, used, logits = self._kept, list[_Timeline](), []
        for row in rows:
            shared, best = max(((_common(t.row, row), t) for t in free), key=lambda pair: pair[0], default=(0, None))
            if best is None or shared < min(len(row), len(best.row)) // 2 or not shared:
                shared, best = 0, _Timeline(self._model, self._given)
            else:
                free.remove(best)
            used.append(best)
            logits.append(best.logits(row, shared))
        self._kept = (used + free)[:TIMELINES_MAX]
        return np.stack(logits)

    def close(self) -> None:
        for timeline in self._kept:
            timeline.session.close()
        self._kept = []


class GenerationSession(_Timelines):
    """A conversation over several calls of `generate(..., session=)`, each of which gives only what is new.

    Its limit is max_length tokens for each row of the batch. Options: `describe_options("session")`."""

    def __init__(self, model: Model, max_length: int | None = None, **given: Any) -> None:
        super().__init__(model, max_length=max_length, **given)
        self.output_ids: torch.Tensor | None = None
        """All tokens so far: (batch, tokens)."""
        self._mask: torch.Tensor | None = None

    @property
    def position(self) -> int:
        """How many tokens there are. Setting it to less rewinds."""
        return 0 if self.output_ids is None else self.output_ids.shape[1]

    @position.setter
    def position(self, n: int) -> None:
        if not 0 <= n <= self.position:
            raise errors.Refused(f"{n} is no position of a session of {self.position} tokens")
        self.output_ids = None if n == 0 or self.output_ids is None else self.output_ids[:, :n]

    def _append(self, inputs: torch.Tensor | None, mask: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """All tokens up to the end of new ones, and their mask."""
        if inputs is None and self.output_ids is None:
            raise errors.Refused("this session has no tokens yet: the first call of generate() needs some")
        tokens = [t for t in (self.output_ids, inputs) if t is not None]
        if len({len(t) for t in tokens}) > 1:
            raise errors.Refused(f"this session has a batch of {len(tokens[0])}, not {len(tokens[1])}")
        known = self._mask[:, : self.position] if self._mask is not None else None
        masks = [torch.ones_like(t) if m is None else m for t, m in zip((self.output_ids, inputs), (known, mask)) if t is not None]
        return torch.cat(tokens, 1), torch.cat(masks, 1)

    def __enter__(self) -> GenerationSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_active: ContextVar[GenerationSession | None] = ContextVar("session of generate()", default=None)


class SwarmConfig(PretrainedConfig):
    """The sizes of a model by the names of transformers."""

    model_type = "swarm"


class DistributedModelForCausalLM(PreTrainedModel, GenerationMixin):
    """`DistributedModelForCausalLM.from_pretrained(path, swarm=Swarm(join=[...]))`.

    Weights of the blocks stay at the nodes and are not trained; the embedding is here, frozen."""

    config_class = SwarmConfig
    main_input_name = "input_ids"
    _no_split_modules: list[str] = []

    def __init__(self, config: SwarmConfig, model: Model, n_prompt: int = 0, **given: Any) -> None:
        super().__init__(config)
        self.remote = model
        self.embed_tokens = torch.nn.Embedding(model.vocab, model.width)
        self.prompt_embeddings = torch.nn.Embedding(n_prompt, model.width) if n_prompt else None
        self.blocks = nn.RemoteSequential(model, **given)
        self._timelines = _Timelines(model)
        self.post_init()
        table = torch.from_numpy(model.embed(np.arange(model.vocab)))
        self.embed_tokens.weight = torch.nn.Parameter(table, requires_grad=False)
        if self.prompt_embeddings is not None:
            self.prompt_embeddings.weight.data.normal_(std=table.std().item())
        self.generation_config.use_cache = False

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], *, swarm: Swarm | None = None,
                        initial_peers: str | Sequence[str] | None = None, tuning_mode: str | None = None,
                        pre_seq_len: int = 16, **given: Any) -> DistributedModelForCausalLM:
        """name: as for `swarmnode.Model`. swarm, or initial_peers ("HOST:PORT" of its nodes): who computes the blocks;
        neither: this process does. tuning_mode: "ptune" trains pre_seq_len embeddings before the text, "deep_ptune" so
        many in every block. Other options: those of `swarmnode.nn.RemoteSequential` ("method", "only", "deny", ...)."""
        if tuning_mode not in (None, "ptune", "deep_ptune"):
            raise errors.Refused(f"tuning_mode is ptune or deep_ptune, not {tuning_mode}")
        if tuning_mode == "deep_ptune":
            given = {**given, "method": "deep-prompt", "virtual_tokens": pre_seq_len}
        model = Model(Swarm(join=initial_peers) if initial_peers else swarm, name)
        hp = model.describe()["hparams"]
        ends = [token for token in range(model.vocab) if model.tokenizer.ends(token)]
        config = SwarmConfig(vocab_size=model.vocab, hidden_size=model.width, num_hidden_layers=model.blocks,
                             num_attention_heads=hp["n_heads"], max_position_embeddings=model.context,
                             tie_word_embeddings=False, eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0,
                             use_cache=False)
        made: DistributedModelForCausalLM = cls(config, model, pre_seq_len if tuning_mode == "ptune" else 0, **given).eval()
        return made

    def _init_weights(self, module: Any) -> None:
        """Nothing is initialised: weights come from the model."""

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embed_tokens

    def inference_session(self, max_length: int | None = None, **given: Any) -> GenerationSession:
        """A conversation for `generate(..., session=)`, of max_length tokens at most."""
        longer = self.prompt_embeddings.num_embeddings if max_length and self.prompt_embeddings else 0
        return GenerationSession(self.remote, max_length and max_length + longer, **given)

    def generate(self, inputs: torch.Tensor | None = None, *args: Any, session: GenerationSession | None = None,
                 **given: Any) -> Any:
        """`generate()` of transformers. With a session `inputs` (batch, tokens) are what follows its tokens (None: nothing
        but them), and the result begins with `inputs`."""
        if session is None:
            return super().generate(inputs, *args, **given)
        new = given.pop("input_ids", None) if inputs is None else inputs
        before = session.position
        tokens, given["attention_mask"] = session._append(new, given.get("attention_mask"))
        active = _active.set(session)
        try:
            result = super().generate(tokens, *args, **given)
        finally:
            _active.reset(active)
        whole = result if isinstance(result, torch.Tensor) else result.sequences
        made = torch.ones_like(whole[:, tokens.shape[1] :])
        session.output_ids, session._mask = whole, torch.cat([given["attention_mask"], made], 1)
        if isinstance(result, torch.Tensor):
            return whole[:, before:]
        result.sequences = whole[:, before:]
        return result

    def prepare_inputs_for_generation(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None,
                                      inputs_embeds: torch.Tensor | None = None, **_: Any) -> dict[str, Any]:
        """The whole sequence; of its logits the last ones."""
        made: dict[str, Any] = {"attention_mask": attention_mask, "logits_to_keep": 1}
        if inputs_embeds is None:
            return {**made, "input_ids": input_ids}
        n = input_ids.shape[1]  # what was generated after the embeddings, if anything was
        more = self.embed_tokens(input_ids)
        return {**made, "inputs_embeds": torch.cat([inputs_embeds, more], 1) if n else inputs_embeds}

    def forward(self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
                inputs_embeds: torch.Tensor | None = None, labels: torch.Tensor | None = None,
                logits_to_keep: int = 0, num_items_in_batch: torch.Tensor | int | None = None, **_: Any) -> CausalLMOutput:
        """logits (batch, tokens, vocab) of input_ids (batch, tokens) or inputs_embeds (batch, tokens, width), and with
        labels (batch, tokens; -100: not learned) their loss: the mean, or the sum over num_items_in_batch. Positions of
        which attention_mask is 0 are left out, on either side. logits_to_keep: only so many last ones; 0: all."""
        decodes = logits_to_keep == 1 and labels is None and self.blocks.values is None and not torch.is_grad_enabled()
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None:
            raise errors.Refused("input_ids or inputs_embeds are needed")
        mask = torch.ones(given.shape[:2]) if attention_mask is None else attention_mask[:, -given.shape[1] :]
        if decodes and inputs_embeds is None and self.prompt_embeddings is None:
            return CausalLMOutput(logits=self._decode(given, mask))  # by token ids
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self.prompt_embeddings is not None:
            prompt = self.prompt_embeddings.weight.expand(len(hidden), -1, -1)
            hidden = torch.cat([prompt, hidden], 1)
            mask = torch.cat([torch.ones(prompt.shape[:2]).to(mask), mask], 1)
        if decodes:
            return CausalLMOutput(logits=self._decode(hidden, mask))
        kept = mask.bool()
        out = torch.zeros_like(hidden)
        out[kept] = self.blocks(hidden[kept], kept.sum(1).tolist())
        logits = nn.logits(self.remote, out[:, -(logits_to_keep or given.shape[1]) :])
        loss = None
        if labels is not None:
            learned = labels[:, 1:].flatten()
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), learned,
                                                     reduction="mean" if num_items_in_batch is None else "sum")
            loss = loss if num_items_in_batch is None else loss / num_items_in_batch
        return CausalLMOutput(loss=loss, logits=logits)

    def _decode(self, rows: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """The logits (batch, 1, vocab) of each row's last place, by timelines that have most of the row already."""
        array, kept = rows.detach().cpu().numpy(), mask.cpu().numpy() != 0
        timelines = _active.get() or self._timelines
        return nn.like(timelines.logits([row[k] for row, k in zip(array, kept)])[:, None], rows)


AutoDistributedModelForCausalLM = DistributedModelForCausalLM
AutoConfig.register("swarm", SwarmConfig, exist_ok=True)
AutoModelForCausalLM.register(SwarmConfig, DistributedModelForCausalLM, exist_ok=True)


def _common(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int:
    """How many places two rows have in common at their beginnings."""
    n = min(len(a), len(b))
    if a.ndim != b.ndim:
        return 0
    differ = np.flatnonzero((a[:n] != b[:n]).reshape(n, -1).any(1)) if n else np.empty(0)
    return int(differ[0]) if differ.size else n
