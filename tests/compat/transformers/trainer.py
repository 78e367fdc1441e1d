"""The Trainer on a model of random weights, as the quick tour of transformers has it."""

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

config = BertConfig(
    vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, num_labels=2
)
torch.manual_seed(0)
words = torch.randint(64, (64, 8))
rows = [{"input_ids": row, "labels": row.sum() % 2} for row in words]
arguments = TrainingArguments(
    "trained", max_steps=6, per_device_train_batch_size=4, save_strategy="no", report_to="none"
)
trainer = Trainer(BertForSequenceClassification(config), arguments, train_dataset=rows)
loss = trainer.train().training_loss
print(f"rank {arguments.process_index} of {arguments.world_size}, local rank {arguments.local_process_index}")
print(f"loss {loss:.4f}, weights {sum(value.double().sum() for value in trainer.model.parameters()):.6f}")
