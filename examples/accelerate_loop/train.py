"""Train a small convolutional classifier with Accelerate: `python train.py`."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F


class Classifier(nn.Module):
    def __init__(self, width=32, classes=10):
        super().__init__()
        self.blocks = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.BatchNorm2d(2 * width),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
        )
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(8 * width, classes))

    def forward(self, images):
        return self.head(self.blocks(images).flatten(1))


def make_training(seed=0, learning_rate=5e-3, steps=300, cycle_momentum=True):
    set_seed(seed)
    accelerator = Accelerator()
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, steps, cycle_momentum=cycle_momentum)
    return accelerator, *accelerator.prepare(model, optimizer, scheduler)


def make_batch(index, seed=0, size=32, side=16):
    """Return images with a bright row whose number is the class."""
    generator = torch.Generator().manual_seed(1_000_003 * seed + index)
    labels = torch.randint(10, (size,), generator=generator)
    images = torch.rand(size, 1, side, side, generator=generator)
    images[torch.arange(size), 0, labels] += 0.5
    return {"images": images, "labels": labels}


def train_step(accelerator, model, optimizer, batch):
    with accelerator.accumulate(model):
        loss = F.cross_entropy(model(batch["images"]), batch["labels"])
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return loss.detach()


if __name__ == "__main__":
    accelerator, model, optimizer, scheduler = make_training()
    for index in range(100):
        batch = {name: tensor.to(accelerator.device) for name, tensor in make_batch(index).items()}
        loss = train_step(accelerator, model, optimizer, batch)
        scheduler.step()
        if index % 10 == 9:
            accelerator.print(f"step {index + 1}: loss {accelerator.gather(loss).mean().item():.4f}")
