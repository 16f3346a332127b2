"""A model of transformers whose blocks a swarm computes: `generate()`, Trainer and PEFT's prompt tuning take it.

It has no cache of transformers: `generate()` gives the whole sequence with every token, and sessions of the swarm, which
know their timelines, compute only what is new.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from transformers import GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput

from . import nn
from .model import Model
from .session import Session
from .swarm import Swarm

SESSIONS_MAX = 16  # timelines that are kept; a batch may have more


class SwarmConfig(PretrainedConfig):
    """The sizes of a model by the names of transformers."""

    model_type = "swarm"


class DistributedModelForCausalLM(PreTrainedModel, GenerationMixin):
    """`DistributedModelForCausalLM.from_pretrained(path, swarm=Swarm(join=[...]))`.

    Weights of the blocks stay at the nodes and are not trained; the embedding is here, frozen."""

    config_class = SwarmConfig
    main_input_name = "input_ids"
    _no_split_modules: list[str] = []

    def __init__(self, config: SwarmConfig, model: Model, **given: Any) -> None:
        super().__init__(config)
        self.remote = model
        self.embed_tokens = torch.nn.Embedding(model.vocab, model.width)
        self.blocks = nn.RemoteSequential(model, **given)
        self._sessions: list[Session] = []
        self.post_init()
        self.embed_tokens.weight.data = torch.from_numpy(model.embed(np.arange(model.vocab)))
        self.embed_tokens.weight.requires_grad_(False)
        self.generation_config.use_cache = False

    @classmethod
    def from_pretrained(cls, name: str | os.PathLike[str], *, swarm: Swarm | None = None,
                        **given: Any) -> DistributedModelForCausalLM:
        """name: as for `swarmnode.Model`. swarm: None computes the blocks here. Options: those of
        `swarmnode.nn.RemoteSequential` ("method", "only", "deny", ...)."""
        model = Model(swarm, name)
        hp = model.describe()["hparams"]
        ends = [token for token in range(model.vocab) if model.tokenizer.ends(token)]
        config = SwarmConfig(vocab_size=model.vocab, hidden_size=model.width, num_hidden_layers=model.blocks,
                             num_attention_heads=hp["n_heads"], max_position_embeddings=model.context,
                             tie_word_embeddings=False, eos_token_id=ends or None, pad_token_id=ends[0] if ends else 0,
                             use_cache=False)
        made: DistributedModelForCausalLM = cls(config, model, **given).eval()
        return made

    def _init_weights(self, module: Any) -> None:
        """Nothing is initialised: weights come from the model."""

    def get_input_embeddings(self) -> torch.nn.Embedding:
        return self.embed_tokens

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
                logits_to_keep: int = 0, **_: Any) -> CausalLMOutput:
        """logits (batch, tokens, vocab) of input_ids (batch, tokens) or inputs_embeds (batch, tokens, width), and with
        labels (batch, tokens; -100: not learned) their mean loss. Positions of which attention_mask is 0 are left out,
        on either side. logits_to_keep: only so many last ones; 0: all."""
        if input_ids is not None and logits_to_keep == 1 and labels is None and self.blocks.values is None:
            return CausalLMOutput(logits=self._decode(input_ids, attention_mask))
        hidden = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        mask = torch.ones(hidden.shape[:2]) if attention_mask is None else attention_mask[:, -hidden.shape[1] :]
        kept = mask.bool()
        out = torch.zeros_like(hidden)
        out[kept] = self.blocks(hidden[kept], kept.sum(1).tolist())
        logits = nn.logits(self.remote, out[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return CausalLMOutput(loss=loss, logits=logits)

    def _decode(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """The logits (batch, 1, vocab) of each row's last token, by sessions that have most of the row already."""
        free, used, rows = self._sessions, [], []
        for i, ids in enumerate(input_ids.cpu().numpy()):
            kept = ids if attention_mask is None else ids[attention_mask[i, -len(ids) :].cpu().numpy() != 0]
            shared, session = max(((_common(s.tokens, kept), s) for s in free), key=lambda pair: pair[0], default=(0, None))
            if session is None or shared < min(len(kept), session.position) // 2:
                shared, session = 0, self.remote.session()
            else:
                free.remove(session)
            used.append(session)
            session.position = min(shared, len(kept) - 1)
            session.prefill(kept[session.position : -1])
            rows.append(session.step(int(kept[-1])))
        self._sessions = (used + free)[:SESSIONS_MAX]
        return nn.like(np.stack(rows)[:, None], input_ids)


def _common(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> int:
    """How many tokens two timelines have in common at their beginnings."""
    n = min(len(a), len(b))
    differ = np.flatnonzero(a[:n] != b[:n])
    return int(differ[0]) if differ.size else n
