"""A model of transformers whose blocks a swarm computes: `generate()`, pipelines, Trainer and PEFT's prompt tuning take it.

It has no cache of transformers: `generate()` gives the whole sequence with every token, and timelines of the swarm, which
know what they computed, compute only what is new. What is trained goes with them as an adapter.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from . import errors, nn
from .blocks import RemoteBlocks
from .model import Adapter, Model
from .session import Session
from .swarm import Swarm

FROZEN = "embed_tokens.weight"  # of the state, which has it from the model
TUNED = {"method", "virtual_tokens", "rank", "alpha", "targets"}  # options that say what is trained
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
        self._owns_adapter = "adapter" not in given

    def use(self, adapter: Adapter | None) -> None:
        """What is computed from now on goes with this adapter; keys and values of another one are given up."""
        if self._owns_adapter and self._given.get("adapter") is not adapter:
            self.close()
            self._given["adapter"] = adapter

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


_active: ContextVar[_Timelines | None] = ContextVar("timelines of generate()", default=None)


class SwarmConfig(PretrainedConfig):
    """The sizes of a model by the names of transformers; base_model: where it is; tuning: the options of what is trained."""

    model_type = "swarm"

    @classmethod
    def get_config_dict(cls, *args: Any, **given: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """PEFT asks this class for the vocabulary of the model itself, whose folder says another type."""
        config, unused = super().get_config_dict(*args, **given)
        return {**config, "model_type": cls.model_type}, unused


class DistributedModelForCausalLM(PreTrainedModel, GenerationMixin):
    """`DistributedModelForCausalLM.from_pretrained(path, swarm=Swarm(join=[...]))`.

    Weights of the blocks stay at the nodes and are not trained; the embedding is here, frozen. `save_pretrained` keeps what
    is trained: values in the blocks, and virtual tokens before the text (`prompt_embeddings`)."""

    config_class = SwarmConfig
    main_input_name = "input_ids"
    _no_split_modules: list[str] = []
    _keys_to_ignore_on_save = [FROZEN]

    def __init__(self, config: SwarmConfig, model: Model, **given: Any) -> None:
        super().__init__(config)
        self.remote = model
        self.embed_tokens = torch.nn.Embedding(model.vocab, model.width)
        self.blocks = nn.RemoteSequential(model, **given)
        n_prompt = self.blocks.blocks.virtual_tokens
        self.prompt_embeddings = torch.nn.Embedding(n_prompt, model.width) if n_prompt else None
        self._timelines = _Timelines(model, **self.blocks.blocks.session_options())
        self._made: tuple[list[np.ndarray[Any, Any]], Adapter] | None = None
        self.post_init()
        table = torch.from_numpy(model.embed(np.arange(model.vocab)))
        self.embed_tokens.weight = torch.nn.Parameter(table, requires_grad=False)
        if self.prompt_embeddings is not None:
            self.prompt_embeddings.weight.data.normal_(std=table.std().item())
        self.generation_config.use_cache = False

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], *, swarm: Swarm | None = None,
                        initial_peers: str | Sequence[str] | None = None, tuning_mode: str | None = None,
                        pre_seq_len: int = 16, base_model: str | os.PathLike[str] | None = None, kv_dtype: str | None = None,
                        **given: Any) -> DistributedModelForCausalLM:
        """name: as for `swarmnode.Model`, or a folder of `save_pretrained`. swarm, or initial_peers ("HOST:PORT" of its
        nodes): who computes the blocks; neither: this process does. tuning_mode: "ptune" trains pre_seq_len embeddings before
        the text, "deep_ptune" these and so many in every further block. base_model: where the model of such a folder is now.
        kv_dtype: of the KV caches of generation, as the nodes have; None: f16.
        Other options: those of `swarmnode.nn.RemoteSequential` ("method", "only", "deny", ...)."""
        modes = {"ptune": "prompt", "deep_ptune": "deep-prompt"}
        if "config" in given:  # of AutoModelForCausalLM, which gives more that means nothing here
            raise errors.Refused("a model of a swarm is opened by AutoDistributedModelForCausalLM of swarmnode.hf")
        saved = _saved(name)
        if tuning_mode is not None:
            if tuning_mode not in modes:
                raise errors.Refused(f"tuning_mode is ptune or deep_ptune, not {tuning_mode}")
            given = {**given, "method": modes[tuning_mode], "virtual_tokens": pre_seq_len}
        if saved:
            if TUNED & given.keys():
                raise errors.Refused(f"{name} says itself how it was tuned: leave out {', '.join(sorted(TUNED & given.keys()))}")
            given, base_model = {**given, **saved.tuning}, base_model or saved.base_model
        base = base_model or name
        model = Model(Swarm(join=initial_peers) if initial_peers else swarm, base, kv_dtype=kv_dtype)
        made: DistributedModelForCausalLM = cls(_config(model, base), model, **given).eval()
        made.config.tuning = _tuning(made.blocks.blocks)
        if saved:
            made._load(name)
        return made

    def _load(self, folder: str | os.PathLike[str]) -> None:
        """What was trained, from a folder of `save_pretrained`."""
        if not self.config.tuning:
            return
        Adapter(self.remote, folder).close()  # refuses other weights than those that it was trained for
        path, older = (os.path.join(folder, name) for name in ("model.safetensors", "pytorch_model.bin"))
        state: dict[str, torch.Tensor] = {}
        if os.path.exists(path):
            from safetensors.torch import load_file

            state = load_file(path)
        elif os.path.exists(older):
            state = torch.load(older, map_location="cpu", weights_only=True)
        wanted = {key: value.shape for key, value in self.state_dict().items() if key != FROZEN}
        if {key: value.shape for key, value in state.items()} != wanted:
            raise errors.Refused(f"{folder} does not have the values that its config.json names")
        self.load_state_dict(state, strict=False)

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **given: Any) -> Any:
        """Writes what was trained, and neither blocks nor embedding: for `from_pretrained`, and as an adapter for
        `swarmnode.Adapter`, `swarm generate --adapter` and, but for deep prompts, PEFT."""
        result = super().save_pretrained(save_directory, *args, **given)
        if self.config.tuning and given.get("is_main_process", True):
            self.blocks.save_adapter(save_directory, self._prompt())
            path = os.path.join(save_directory, "adapter_config.json")
            with open(path) as file:
                config = {**json.load(file), "base_model_name_or_path": self.config.base_model}
            with open(f"{path}.new", "w") as file:
                json.dump(config, file, indent=2)
            os.replace(f"{path}.new", path)
        return result

    def _prompt(self) -> torch.Tensor | None:
        return None if self.prompt_embeddings is None else self.prompt_embeddings.weight

    def _adapter(self) -> Adapter | None:
        """What is trained as it is now; the same object as long as it does not change."""
        prompt = self._prompt()
        values = [t.detach().cpu().numpy().copy() for t in (self.blocks.values, prompt) if t is not None]
        if not values:
            return None
        if self._made is None or not all(map(np.array_equal, values, self._made[0])):
            self._made = values, self.blocks.adapter(prompt)
        return self._made[1]

    def _init_weights(self, module: Any) -> None:
        """Nothing is initialised: weights come from the model."""

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embed_tokens

    def inference_session(self, max_length: int | None = None, **given: Any) -> GenerationSession:
        """A conversation for `generate(..., session=)`, of max_length tokens at most."""
        return GenerationSession(self.remote, max_length, **{**self.blocks.blocks.session_options(), **given})

    def generate(self, inputs: torch.Tensor | None = None, *args: Any, session: GenerationSession | None = None,
                 **given: Any) -> Any:
        """`generate()` of transformers. With a session `inputs` (batch, tokens) are what follows its tokens (None: nothing
        but them), and the result begins with `inputs`."""
        timelines = self._timelines if session is None else session
        timelines.use(self._adapter())
        active = _active.set(timelines)
        try:
            if session is None:
                return super().generate(inputs, *args, **given)
            return self._continue(session, given.pop("input_ids", None) if inputs is None else inputs, *args, **given)
        finally:
            _active.reset(active)

    def _continue(self, session: GenerationSession, new: torch.Tensor | None, *args: Any, **given: Any) -> Any:
        before = session.position
        tokens, given["attention_mask"] = session._append(new, given.get("attention_mask"))
        result = super().generate(tokens, *args, **given)
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
        given = input_ids if inputs_embeds is None else inputs_embeds
        if given is None:
            raise errors.Refused("input_ids or inputs_embeds are needed")
        mask = torch.ones(given.shape[:2]) if attention_mask is None else attention_mask[:, -given.shape[1] :]
        if logits_to_keep == 1 and labels is None and not torch.is_grad_enabled():
            return CausalLMOutput(logits=self._decode(given, mask))
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if self.prompt_embeddings is not None:
            prompt = self.prompt_embeddings.weight.expand(len(hidden), -1, -1)
            hidden = torch.cat([prompt, hidden], 1)
            mask = torch.cat([torch.ones(prompt.shape[:2]).to(mask), mask], 1)
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
        """The logits (batch, 1, vocab) of each row's last place, of token ids or embeddings, by timelines that have most of
        the row already."""
        array, kept = rows.detach().cpu().numpy(), mask.cpu().numpy() != 0
        timelines = _active.get()
        if timelines is None:  # not within generate()
            timelines = self._timelines
            timelines.use(self._adapter())
        return nn.like(timelines.logits([row[k] for row, k in zip(array, kept)])[:, None], rows)


def _config(model: Model, name: str | os.PathLike[str]) -> SwarmConfig:
    hp = model.describe()["hparams"]
    ends = [token for token in range(model.vocab) if model.tokenizer.ends(token)]
    base = os.path.abspath(name) if os.path.exists(name) else str(name)
    return SwarmConfig(vocab_size=model.vocab, hidden_size=model.width, num_hidden_layers=model.blocks,
                       num_attention_heads=hp["n_heads"], max_position_embeddings=model.context, tie_word_embeddings=False,
                       eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0, use_cache=False, name_or_path=base,
                       base_model=base, tuning={})


def _tuning(blocks: RemoteBlocks) -> dict[str, Any]:
    """The options with which `from_pretrained` opens such blocks again; empty: nothing is trained."""
    method = blocks.options.get("method")
    kinds = {} if method is None else {"rank": int, "alpha": float, "targets": str} if method == "lora" else {"virtual_tokens": int}
    made = {key: kind(value) for key, kind in kinds.items() if (value := blocks.option(key)) is not None}
    return made if method is None else {"method": method, **made}


def _saved(name: str | os.PathLike[str]) -> SwarmConfig | None:
    """The configuration of a folder of `save_pretrained`; None: it is none."""
    path = os.path.join(name, "config.json")
    if not os.path.exists(path):
        return None
    with open(path) as file:
        config = json.load(file)
    if config.get("model_type") != SwarmConfig.model_type:
        return None
    tuning = config.get("tuning")
    if not isinstance(tuning, dict) or tuning.keys() - TUNED or not isinstance(config.get("base_model"), str):
        raise errors.Refused(f"{path} does not say of which model it is: save it again with save_pretrained()")
    return SwarmConfig(**config)


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
