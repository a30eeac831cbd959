"""Train a small recurrent model with Lightning: `python train.py`."""

import pytorch_lightning as pl
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Waves(Dataset):
    """Sums of two sines, with their next values as targets."""

    def __init__(self, length, examples=8192):
        generator = torch.Generator().manual_seed(1)
        speed, phase = torch.rand(2, examples, 2, 1, generator=generator)
        self.values = torch.sin(speed * torch.arange(length + 1) + 6 * phase).sum(dim=1)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return {"past": self.values[index, :-1], "next": self.values[index, 1:]}


class Forecast(pl.LightningModule):
    def __init__(self, width=64, learning_rate=1e-2):
        super().__init__()
        self.learning_rate = learning_rate
        self.model = nn.Sequential(nn.Conv1d(1, width, 5), nn.GELU(), nn.Conv1d(width, width, 5), nn.GELU())
        self.head = nn.Conv1d(width, 1, 1)

    def training_step(self, batch, batch_index):
        past = F.pad(batch["past"].unsqueeze(1), (8, 0))
        loss = F.mse_loss(self.head(self.model(past)).squeeze(1), batch["next"])
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def make_fit(seed=0, batch_size=16, length=32, steps=500, learning_rate=1e-2, quiet=False):
    pl.seed_everything(seed, verbose=False)
    module, data = Forecast(learning_rate=learning_rate), Waves(length)
    shuffled = torch.Generator().manual_seed(seed)
    loader = DataLoader(data, batch_size, shuffle=True, drop_last=True, generator=shuffled)
    trainer = pl.Trainer(
        max_steps=steps,
        gradient_clip_val=1.0,
        log_every_n_steps=10,
        enable_checkpointing=False,
        logger=False,
        enable_progress_bar=not quiet,
        enable_model_summary=not quiet,
    )
    return trainer, module, loader


if __name__ == "__main__":
    trainer, module, loader = make_fit(steps=100)
    trainer.fit(module, loader)
    print(f"loss {trainer.callback_metrics['loss'].item():.4f}")
