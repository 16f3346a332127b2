"""The model of transformers: generation, batches, the loss, and PEFT's prompt tuning."""

import numpy as np
import pytest

from test_blocks import close, golden

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
hf = pytest.importorskip("swarmnode.hf")

IDS = [1, 17, 42, 99, 3, 250, 11, 7]


@pytest.fixture(scope="module")
def distributed(swarm, tiny_path):
    return hf.DistributedModelForCausalLM.from_pretrained(tiny_path, swarm=swarm)


def test_generate_gives_the_tokens_of_the_swarm(distributed, tiny):
    expected = tiny.generate(IDS, max_tokens=10, ignore_eos=True).ids
    out = distributed.generate(torch.tensor([IDS]), max_new_tokens=10, do_sample=False, eos_token_id=None)
    assert out[0].tolist() == IDS + expected


def test_only_new_tokens_are_computed(distributed):
    distributed._sessions = []
    distributed.generate(torch.tensor([IDS]), max_new_tokens=5, do_sample=False, eos_token_id=None)
    (session,) = distributed._sessions
    before = session.position
    distributed.generate(torch.tensor([IDS]), max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert distributed._sessions == [session] and session.position == before == len(IDS) + 4


def test_rows_of_a_padded_batch_are_alone(distributed):
    rows = [IDS, IDS[:5]]
    alone = [distributed.generate(torch.tensor([r]), max_new_tokens=6, do_sample=False, eos_token_id=None)[0, len(r):].tolist() for r in rows]
    ids = torch.tensor([IDS, [0, 0, 0, *IDS[:5]]])
    mask = torch.tensor([[1] * 8, [0] * 3 + [1] * 5])
    out = distributed.generate(ids, attention_mask=mask, max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert out[:, 8:].tolist() == alone
    both = distributed(ids, attention_mask=mask).logits
    assert close(both[1, 3:].detach(), distributed(torch.tensor([IDS[:5]])).logits[0].detach().numpy(), 1e-6)


def test_the_loss_is_the_references(distributed):
    ids = torch.from_numpy(golden("input_ids", np.int64).copy())[None]
    out = distributed(ids, labels=ids)
    assert abs(out.loss.item() - golden("loss").item()) < 1e-5 and close(out.logits[0].detach(), golden("logits"))


def test_prompt_tuning_of_peft_learns(distributed):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    model = peft.get_peft_model(distributed, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.05)
    ids = torch.tensor([IDS])
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
