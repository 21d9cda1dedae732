import os
import tempfile

os.environ["WANDB_DISABLED"] = "true"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(42)


class ParityDataset(Dataset):
    def __init__(self, n, seed):
        rng = np.random.default_rng(seed)
        self.ids = rng.integers(2, 30, size=(n, 12))
        self.labels = (self.ids[:, 0] > 15).astype(int)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, idx):
        return {
            "input_ids": torch.tensor(self.ids[idx]),
            "attention_mask": torch.ones(12, dtype=torch.long),
            "labels": torch.tensor(self.labels[idx]),
        }


def compute_metrics(eval_pred):
    logits, labels = eval_pred
    predictions = np.argmax(logits, axis=-1)
    return {"accuracy": (predictions == labels).mean()}


config = BertConfig(
    vocab_size=30,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=16,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    num_labels=2,
)
model = BertForSequenceClassification(config)

with tempfile.TemporaryDirectory() as output_dir:
    args = TrainingArguments(
        output_dir=output_dir,
        num_train_epochs=4,
        per_device_train_batch_size=16,
        per_device_eval_batch_size=32,
        gradient_accumulation_steps=2,
        learning_rate=5e-3,
        warmup_steps=2,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=True,
        logging_steps=4,
        report_to=[],
        disable_tqdm=True,
        seed=42,
    )
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=ParityDataset(192, seed=0),
        eval_dataset=ParityDataset(64, seed=1),
        compute_metrics=compute_metrics,
    )
    result = trainer.train()
    metrics = trainer.evaluate()

if torch.cuda.is_available():
    assert model.device.type == "cuda", model.device
print("train_loss %.5f" % result.training_loss)
print("eval_loss %.5f" % metrics["eval_loss"])
print("eval_accuracy %.4f" % metrics["eval_accuracy"])
