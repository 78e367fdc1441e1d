"""Lightning's own example model, trained by its strategy ddp."""

import os

from lightning.pytorch import Trainer
from lightning.pytorch.demos.boring_classes import BoringModel

nodes = int(os.environ["GROUP_WORLD_SIZE"])
devices = int(os.environ["LOCAL_WORLD_SIZE"])
trainer = Trainer(
    accelerator="cpu",
    strategy="ddp",
    num_nodes=nodes,
    devices=devices,
    max_epochs=1,
    limit_train_batches=4,
    limit_val_batches=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
model = BoringModel()
trainer.fit(model)
print(f"rank {trainer.global_rank} of {trainer.world_size}, local rank {trainer.local_rank}, node {trainer.node_rank}")
print(f"weights {sum(value.double().sum() for value in model.parameters()):.6f}")
