"""GPT-2 of transformers, small and untrained, trained by its `Trainer` on the bytes of a text.

Alone: `python examples/train_gpt2.py FOLDER`. As planned, unchanged: `pipeplan profile
examples.train_gpt2:make_training -m 4 --devices 2 -o workload.json`, `pipeplan plan workload.json -o plan.json`, and
`torchrun --nproc-per-node 2 -m planner.execute.transformers_trainer plan.json examples/train_gpt2.py FOLDER`.
"""

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from planner.execute.training import Training

TEXT = torch.tensor(list(Path(__file__).with_name("text.txt").read_bytes()))
LENGTH = 32


def make_trainer(folder: str, *, bf16: bool = False) -> Trainer:
    """The first tokens of every fourth sample do not count, so microbatches have different numbers of them.

    `bf16`: compute in bfloat16 where torch.autocast does.
    """
    set_seed(0)
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=32, n_head=4, n_layer=4, **ends)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    pieces = TEXT[: len(TEXT) // LENGTH * LENGTH].view(-1, LENGTH)[:96]
    samples = [{"input_ids": piece, "labels": piece.clone()} for piece in pieces]
    for sample in samples[::4]:
        sample["labels"][: LENGTH // 2] = -100
    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=6,
        learning_rate=1e-3,
        weight_decay=0.1,
        warmup_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        save_steps=3,
        report_to=[],
        disable_tqdm=True,
        bf16=bf16,
        use_cpu=not torch.cuda.is_available(),
    )
    return Trainer(model=GPT2LMHeadModel(config), args=arguments, train_dataset=samples[16:], eval_dataset=samples[:16])


def make_training() -> Training:
    """For `pipeplan profile`."""
    from planner.execute.transformers_trainer.trainer_training import make_training as training_of

    return training_of(make_trainer("out"))


if __name__ == "__main__":
    trainer = make_trainer(sys.argv[1], bf16="--bf16" in sys.argv)
    trainer.train(resume_from_checkpoint="--resume" in sys.argv or None)
    trainer.save_model()
