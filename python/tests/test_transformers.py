"""The model of transformers: generation, sessions, batches, the loss, pipelines, Trainer, PEFT's prompt tuning, and programs
that were written for Petals."""

import json

import numpy as np
import pytest

import swarmnode
from test_blocks import close, golden
from test_examples import run as run_example

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
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
    distributed._timelines.close()
    distributed.generate(torch.tensor([IDS]), max_new_tokens=5, do_sample=False, eos_token_id=None)
    (timeline,) = distributed._timelines._kept
    before = timeline.session.position
    distributed.generate(torch.tensor([IDS]), max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert distributed._timelines._kept == [timeline] and timeline.session.position == before == len(IDS) + 4


def test_a_session_of_generate_takes_what_is_new(distributed, tiny):
    greedy = {"do_sample": False, "eos_token_id": None}
    whole = distributed.generate(torch.tensor([IDS]), max_new_tokens=9, **greedy)[0].tolist()
    with distributed.inference_session(max_length=64) as session:
        with pytest.raises(swarmnode.Refused, match="no tokens yet"):
            distributed.generate(None, max_new_tokens=1, session=session)
        assert distributed.generate(torch.tensor([IDS[:3]]), max_new_tokens=1, session=session, **greedy)[0, :3].tolist() == IDS[:3]
        session.position = 3  # what was generated is another token than the next one of IDS
        first = distributed.generate(torch.tensor([IDS[3:]]), max_new_tokens=4, session=session, **greedy)
        assert first[0].tolist() == whole[3 : len(IDS) + 4] and session.position == len(IDS) + 4
        made = [distributed.generate(None, max_new_tokens=1, session=session, **greedy) for _ in range(5)]
        assert torch.cat(made, 1)[0].tolist() == whole[-5:] and session.output_ids[0].tolist() == whole
        assert [t.session.position for t in session._kept] == [len(whole) - 1]
        with pytest.raises(swarmnode.Refused, match="batch of 1"):
            distributed.generate(torch.tensor([IDS, IDS]), max_new_tokens=1, session=session)
    with distributed.inference_session(max_length=len(IDS)) as session, pytest.raises(swarmnode.Refused, match=str(len(IDS))):
        distributed.generate(torch.tensor([IDS]), max_new_tokens=4, session=session, **greedy)


def test_a_pipeline_generates(distributed, tiny, tiny_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_path)
    pipe = transformers.pipeline("text-generation", model=distributed, tokenizer=tokenizer)
    expected = tiny.generate(tiny.tokenizer.encode("hello there"), max_tokens=8, ignore_eos=True).ids
    (made,) = pipe("hello there", max_new_tokens=8, do_sample=False, eos_token_id=None, return_tensors=True)
    assert made["generated_token_ids"][-8:] == expected


def test_trainer_trains(tiny_path, nodes, tmp_path):
    pytest.importorskip("accelerate")
    torch.manual_seed(0)
    model = hf.DistributedModelForCausalLM.from_pretrained(tiny_path, initial_peers=nodes.addresses, tuning_mode="ptune", pre_seq_len=4)
    rows = [{"input_ids": torch.tensor(IDS), "labels": torch.tensor(IDS)}] * 2
    given = transformers.TrainingArguments(str(tmp_path), max_steps=6, learning_rate=0.05, per_device_train_batch_size=1,
                                           logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True,
                                           lr_scheduler_type="constant", max_grad_norm=0)
    trainer = transformers.Trainer(model=model, args=given, train_dataset=rows)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 6 and losses[-1] < losses[0] - 0.1


def petals(name, *arguments, lines=""):
    return run_example(f"../../python/tests/petals/{name}", *arguments, lines=lines)


def test_a_program_for_petals_generates_text(tiny, tiny_path, nodes):
    ids = tiny.tokenizer.encode("A cat sat")
    out = petals("generation.py", tiny_path, "A cat sat", *nodes.addresses)
    assert out == "A cat sat" + tiny.generate(ids, max_tokens=12).text + "\n"


def test_a_program_for_petals_chats(tiny, tiny_path, nodes):
    out = petals("chat.py", tiny_path, nodes.addresses[0], lines="one\ntwo\n").splitlines()
    with tiny.session() as session:
        for line, said in zip(("one\n", "two\n"), out):
            more = tiny.tokenizer.encode(f"Human: {line}AI:", begins=session.position == 0)
            made = session.generate([*session.tokens, *more], max_tokens=10, ignore_eos=True).ids
            assert said.split() == [*map(str, made), str(len(session.tokens))]


@pytest.mark.parametrize("mode", ["ptune", "deep_ptune"])
def test_a_program_for_petals_tunes_a_prompt(tiny_path, nodes, mode):
    *losses, said = petals("prompt_tuning.py", tiny_path, mode, "A cat sat.", *nodes.addresses).splitlines()
    assert len(losses) == 20 and float(losses[-1]) < float(losses[0]) - 1
    made, learned = json.loads(f"[{said.replace('] [', '],[')}]")
    assert made[:2] == learned[:2]  # and generate() has the tuned prompt


def test_generate_with_a_prompt_of_embeddings_computes_only_what_is_new(tiny_path, nodes):
    model = hf.DistributedModelForCausalLM.from_pretrained(tiny_path, initial_peers=nodes.addresses[0], tuning_mode="ptune", pre_seq_len=3)
    row, rows = list(IDS), torch.tensor([IDS, [0, 0, *IDS[2:]]])
    mask = torch.tensor([[1] * 8, [0] * 2 + [1] * 6])
    out = model.generate(rows, attention_mask=mask, max_new_tokens=5, do_sample=False, eos_token_id=None)
    while len(row) < len(IDS) + 5:
        row.append(int(model(torch.tensor([row])).logits[0, -1].argmax()))  # a forward pass of the whole row
    assert out[0].tolist() == row
    alone = model.generate(rows[1:, 2:], max_new_tokens=5, do_sample=False, eos_token_id=None)
    assert out[1, 8:].tolist() == alone[0, 6:].tolist()
    assert [len(t.row) for t in model._timelines._kept] == [3 + 6 + 4, 3 + 8 + 4]  # two timelines: the row alone continued its own


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
    accumulated = distributed(ids, labels=ids, num_items_in_batch=2 * (ids.numel() - 1))  # of Trainer, over two batches
    assert abs(2 * accumulated.loss.item() - out.loss.item()) < 1e-5


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
