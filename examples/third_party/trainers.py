"""Training steps as the READMEs and examples of many libraries write them, each with one bug.

`make_NAME(seed)` returns a step, a function that makes its batches, and the model. Every step is
correct. THIRD_PARTY_BUG=NAME plants the bug of one trainer: the plain step stays correct, but a
capture of it trains differently, since a replay executes no Python. Bugs are marked `BUG`.

Sizes are tiny. A batch depends on the seed and its index alone. `run_all.py` runs the trainers.
"""

import os
import random
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

BUG = os.environ.get("THIRD_PARTY_BUG", "")
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


class Trainer(NamedTuple):
    name: str
    library: str
    version: str  # the version of the library with which the trainer was written
    domain: str
    bug: str
    uncaptured: str = ""  # why no capture is expected on a GPU; empty: a capture is expected
    undecided: str = ""  # why SAME stays undecided on a GPU; empty: it is decided


TRAINERS = (
    Trainer("timm_resnet", "timm", "1.0.31", "images, mixup, averaged weights", "decay from a counter"),
    Trainer("timm_scaler", "timm", "1.0.31", "images, float16, GradScaler", "drop path from a counter"),
    Trainer("timm_compiled", "timm", "1.0.31", "images, torch.compile", "rate from a counter"),
    Trainer("peft_dora", "peft", "0.21.2", "language, DoRA", "rate from LambdaLR"),
    Trainer("peft_adalora", "peft", "0.21.2", "language, AdaLoRA", "ranks dropped at a step"),
    Trainer("pyg_gcn", "torch-geometric", "2.8", "one graph, nodes", "scale from random"),
    Trainer("pyg_gin", "torch-geometric", "2.8", "many graphs, pooling", "batch rebound in a dict"),
    Trainer(
        "hf_bert",
        "transformers",
        "5.17",
        "masked language",
        "masked share from a counter",
        undecided="a captured step keeps the attention mask, so that attention drops out in another kernel",
    ),
    Trainer("hf_mixtral", "transformers", "5.17", "mixture of experts", "loss weight from a counter"),
    Trainer("hf_gpt2", "transformers", "5.17", "language, checkpointing", "batch rebound in an attribute"),
    Trainer("hf_mamba", "transformers", "5.17", "state space", "weight decay from a counter"),
    Trainer("hf_dpo", "transformers", "5.17", "preferences", "reference renewed by a counter"),
    Trainer("audio_keywords", "torchaudio", "2.11", "audio, spectrograms", "mask drawn on the host"),
    Trainer(
        "audio_ctc",
        "torchaudio",
        "2.11",
        "speech, Conformer, CTC",
        "loss weight from a counter",
        "the Conformer reads the longest length, and the CTC loss copies lengths from the host",
    ),
    Trainer("vision_segments", "torchvision", "0.26", "segmentation", "rate from a counter"),
    Trainer("vision_boxes", "torchvision", "0.26", "boxes, RoIAlign, focal loss", "average rebound in a dict"),
    Trainer(
        "gpytorch_svgp",
        "gpytorch",
        "1.15",
        "Gaussian process",
        "KL weight from a counter",
        "the strategy reads a flag, and the Cholesky decomposition is checked, on the host",
    ),
    Trainer(
        "torchdiffeq_ode",
        "torchdiffeq",
        "0.2.5",
        "neural ODE",
        "loss weight from a counter",
        "the solver checks on the host that times increase",
    ),
    Trainer("diffusers_ddpm", "diffusers", "0.42.1", "diffusion, averaged weights", "EMAModel's counter"),
    Trainer("xtransformers_gpt", "x-transformers", "2.31.10", "language", "masked share from a counter"),
    Trainer("vit_mae", "vit-pytorch", "1.26.11", "masked autoencoder", "update gated by a counter"),
    Trainer("vq_vae", "vector-quantize-pytorch", "1.32.0", "codebook", "loss weight from a counter"),
    Trainer("schedulefree_lstm", "schedulefree", "1.4.1", "LSTM", "the optimizer's own counter"),
    Trainer("torchao_qat", "torchao", "0.18.0", "quantization-aware", "quantized from a step on"),
    Trainer("lion_dlrm", "lion-pytorch", "0.2.5", "tabular, embedding bags", "rate multiplied each step"),
    Trainer("sam_tabular", "pytorch-optimizer", "4.1.0", "tabular, SAM, weight norm", "rho from a counter"),
    Trainer("torchmetrics_ssim", "torchmetrics", "1.9", "autoencoder, SSIM", "running mean's counter"),
    Trainer("fabric_gru", "pytorch-lightning", "2.6.6", "GRU, bfloat16", "teacher forcing by random"),
    Trainer("accelerate_tcn", "accelerate", "1.15.0", "time series, bfloat16", "accumulate's own counter"),
    Trainer("sentences_contrast", "sentence-transformers", "6.0.1", "contrastive", "queue's pointer"),
    Trainer("spectral_gan", "torch", "2.11", "GAN, spectral norm", "generator gated by a counter"),
    Trainer("cleanrl_dqn", "torch", "2.11", "reinforcement, gather", "target renewed by a counter"),
    Trainer("einops_mixer", "einops", "0.8.2", "MLP-Mixer, two micro-batches", "earlier batches in a list"),
    Trainer(
        "prodigy_gru",
        "prodigyopt",
        "1.1.2",
        "language, GRU",
        "batch rebound in a list",
        "the optimizer reads its estimate of the distance on the host",
    ),
    Trainer("came_encoder", "came-pytorch", "0.1.3", "language, encoder", "weight decay from a counter"),
    Trainer(
        "ema_denoiser",
        "ema-pytorch",
        "0.8.3",
        "denoising, averaged weights",
        "noise from a counter",
        "the average reads its step on the host",
    ),
    Trainer("metric_softmax", "pytorch-metric-learning", "2.9.0", "metric learning", "temperature from a counter"),
    Trainer("skorch_rows", "skorch", "1.4.0", "tabular", "rate from skorch's LRScheduler"),
    Trainer("ignite_convolutions", "pytorch-ignite", "0.5.5", "images", "accumulation by the engine's counter"),
    Trainer("e3nn_points", "e3nn", "0.6.0", "points, equivariant", "radius from a counter"),
    Trainer("zuko_spline", "zuko", "1.6.0", "normalizing flow", "noise drawn on the host"),
    Trainer("pyro_bayes", "pyro-ppl", "1.9.2", "variational inference", "KL weight from a counter"),
    Trainer("snn_leaky", "snntorch", "1.0.0", "spiking neurons", "potential rebound in a dict"),
    Trainer("kornia_ssim", "kornia", "0.9.0", "deblurring, SSIM", "blur drawn by numpy"),
    Trainer("opacus_private", "opacus", "1.6.0", "differential privacy", "noise from opacus' scheduler"),
    Trainer("geoopt_poincare", "geoopt", "0.5.1", "hyperbolic embeddings", "the optimizer's own counter"),
    Trainer("performer_tokens", "performer-pytorch", "1.1.4", "masked language", "projections redrawn by a counter"),
    Trainer("tabnet_rows", "pytorch-tabnet", "4.1.0", "tabular, sparsemax", "rate from OneCycleLR"),
)


# Batches


def _generator(seed, index):
    return torch.Generator().manual_seed(1000 * seed + index)


def _images(seed, index, count=8, channels=3, size=32, classes=10):
    """Return images (count, channels, size, size) and labels (count,): brightness tells the class."""
    generator = _generator(seed, index)
    y = torch.randint(0, classes, (count,), generator=generator)
    x = torch.randn(count, channels, size, size, generator=generator) + y[:, None, None, None] / 5
    return {"x": x.to(DEVICE), "y": y.to(DEVICE)}


def _tokens(seed, index, count=4, length=16, vocabulary=128):
    """Return token sequences (count, length) that count upwards from a random start."""
    start = torch.randint(0, vocabulary, (count, 1), generator=_generator(seed, index))
    return {"tokens": ((start + torch.arange(length)) % vocabulary).to(DEVICE)}


def _waves(seed, index, count=4, length=2000, classes=8):
    """Return noisy sine waves (count, length) and labels (count,): the pitch tells the class."""
    generator = _generator(seed, index)
    y = torch.randint(0, classes, (count,), generator=generator)
    times = torch.arange(length) / 8000
    x = torch.sin(6.2832 * 200 * (1 + y[:, None]) * times)
    x = x + 0.1 * torch.randn(count, length, generator=generator)
    return {"x": x.to(DEVICE), "y": y.to(DEVICE)}


def _rows(seed, index, count=32, numbers=8, categories=16):
    """Return numbers (count, numbers), categories (count, 4) and labels (count,)."""
    generator = _generator(seed, index)
    x = torch.randn(count, numbers, generator=generator)
    c = torch.randint(0, categories, (count, 4), generator=generator)
    y = ((x.sum(1) + (c[:, 0] < categories // 2)) > 0.5).float()
    return {"x": x.to(DEVICE), "c": c.to(DEVICE), "y": y.to(DEVICE)}


# Images


def make_timm_resnet(seed=0):
    """timm's train.py: mixup, soft targets, clipped gradients, averaged weights."""
    import numpy as np
    import timm
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3, dispatch_clip_grad

    bug = BUG == "timm_resnet"
    torch.manual_seed(seed)
    model = timm.create_model("resnet10t", num_classes=10, drop_rate=0.1).to(DEVICE)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05, fused=True, capturable=CUDA)
    ema = ModelEmaV3(model, decay=0.99, use_warmup=True)
    loss_fn = SoftTargetCrossEntropy()
    mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10)
    updates = 0

    def step(batch):
        nonlocal updates
        loss = loss_fn(model(batch["x"]), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        dispatch_clip_grad(model.parameters(), value=1.0, mode="norm")
        optimizer.step()
        updates += 1
        ema.update(model, step=updates if bug else None)  # BUG: the decay depends on a Python counter
        return loss

    def batch(index):
        images = _images(seed, index)
        np.random.seed(1000 * seed + index)
        x, y = mixup(images["x"], images["y"])
        return {"x": x, "y": y}

    return step, batch, model


def make_timm_scaler(seed=0):
    """timm's ConvNeXt under autocast, with torch's GradScaler and a fused optimizer."""
    import timm

    bug = BUG == "timm_scaler"
    torch.manual_seed(seed)
    model = timm.create_model("test_convnext", num_classes=10, drop_path_rate=0.2).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True, capturable=CUDA)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=1024.0)
    dtype = torch.float16 if CUDA else torch.bfloat16
    paths = [module for module in model.modules() if hasattr(module, "drop_prob")]
    updates = 0

    def step(batch):
        nonlocal updates
        updates += 1
        for path in paths if bug else ():
            path.drop_prob = 0.2 * min(1.0, updates / 20)  # BUG: a Python number that grows; no replay changes it
        optimizer.zero_grad()
        with torch.autocast(DEVICE, dtype=dtype):
            loss = F.cross_entropy(model(batch["x"]), batch["y"], label_smoothing=0.1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step, lambda index: _images(seed, index), model


def make_timm_compiled(seed=0):
    """timm's vision transformer through torch.compile."""
    import timm

    bug = BUG == "timm_compiled"
    torch.manual_seed(seed)
    model = timm.create_model("test_vit", img_size=32, num_classes=10).to(DEVICE)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=CUDA)
    state = {"updates": 0}

    def step(batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(compiled(batch["x"]), batch["y"])
        loss.backward()
        state["updates"] += 1
        if bug:
            optimizer.param_groups[0]["lr"] = 1e-3 / state["updates"] ** 0.5  # BUG: a Python number
        optimizer.step()
        return loss

    return step, lambda index: _images(seed, index), model


def make_vit_mae(seed=0):
    """vit-pytorch's README: a masked autoencoder."""
    from vit_pytorch import MAE, ViT

    bug = BUG == "vit_mae"
    torch.manual_seed(seed)
    encoder = ViT(image_size=32, patch_size=8, num_classes=10, dim=32, depth=2, heads=2, mlp_dim=64, pool="mean")
    model = MAE(encoder=encoder, masking_ratio=0.5, decoder_dim=32, decoder_depth=1, decoder_heads=2).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True, capturable=CUDA)
    state = {"calls": 0}

    def step(batch):
        loss = model(batch["x"])
        loss.backward()
        state["calls"] += 1
        if not bug or state["calls"] % 2 == 0:  # BUG: every second call updates; a replay does not decide
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return step, lambda index: _images(seed, index), model


def make_einops_mixer(seed=0):
    """einops' layers as an MLP-Mixer, with two micro-batches a step."""
    from einops.layers.torch import Rearrange, Reduce

    bug = BUG == "einops_mixer"
    torch.manual_seed(seed)

    def mixed(axis, width):
        swap = [Rearrange("b n d -> b d n")] if axis == "tokens" else []
        layers = [nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)]
        return nn.Sequential(*swap, *layers, *swap)

    model = nn.Sequential(
        Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=8, q=8),
        nn.Linear(192, 32),
        mixed("tokens", 16),
        mixed("channels", 32),
        nn.LayerNorm(32),
        Reduce("b n d -> b d", "mean"),
        nn.Linear(32, 10),
    ).to(DEVICE)
    optimizer = torch.optim.NAdam(model.parameters(), lr=3e-3, capturable=CUDA)
    earlier = [torch.zeros(8, 3, 32, 32, device=DEVICE)]

    def step(batch):
        optimizer.zero_grad()
        x = batch["x"] + 0.3 * (earlier[-1] if bug else batch["x"].flip(0))
        if bug:
            earlier.append(batch["x"])  # BUG: a replay appends nothing
        losses = []
        for images, labels in zip(x.chunk(2), batch["y"].chunk(2), strict=True):
            loss = F.cross_entropy(model(images), labels) / 2
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return sum(losses)

    return step, lambda index: _images(seed, index), model


def make_vision_segments(seed=0):
    """torchvision's reference for segmentation: SGD, a polynomial rate, two losses."""
    from torchvision.models.segmentation import lraspp_mobilenet_v3_large

    bug = BUG == "vision_segments"
    torch.manual_seed(seed)
    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=4).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-4, fused=True)
    updates = 0

    def step(batch):
        nonlocal updates
        loss = F.cross_entropy(model(batch["x"])["out"], batch["mask"])
        optimizer.zero_grad()
        loss.backward()
        updates += 1
        if bug:
            optimizer.param_groups[0]["lr"] = 0.02 * (1 - updates / 100) ** 0.9  # BUG: a Python number
        optimizer.step()
        return loss

    def batch(index):
        generator = _generator(seed, index)
        mask = torch.randint(0, 4, (4, 4, 4), generator=generator)
        mask = mask.repeat_interleave(16, 1).repeat_interleave(16, 2)
        x = torch.randn(4, 3, 64, 64, generator=generator) + mask[:, None]
        return {"x": x.to(DEVICE), "mask": mask.to(DEVICE)}

    return step, batch, model


def make_vision_boxes(seed=0):
    """torchvision's operators as a detector's head: pyramid, RoIAlign, focal and box losses."""
    from torchvision.ops import FeaturePyramidNetwork, roi_align, sigmoid_focal_loss

    bug = BUG == "vision_boxes"
    torch.manual_seed(seed)
    model = nn.ModuleDict(
        {
            "low": nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.ReLU()),
            "high": nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.GroupNorm(4, 32), nn.ReLU()),
            "pyramid": FeaturePyramidNetwork([16, 32], 16),
            "classes": nn.Linear(16 * 16, 4),
            "boxes": nn.Linear(16 * 16, 4),
        }
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True, capturable=CUDA)
    state = {"foreground": torch.tensor(8.0, device=DEVICE)}

    def step(batch):
        low = model["low"](batch["x"])
        maps = model["pyramid"]({"low": low, "high": model["high"](low)})
        boxes = batch["boxes"]  # shape [images, boxes, 4]
        rois = [*boxes]
        pooled = roi_align(maps["low"], rois, 4, 0.5) + roi_align(maps["high"], rois, 4, 0.25)
        pooled = pooled.flatten(1)
        focal = sigmoid_focal_loss(model["classes"](pooled), batch["y"], reduction="sum")
        moved = boxes.flatten(0, 1) + model["boxes"](pooled).tanh()
        count = batch["y"].sum()
        if bug:
            state["foreground"] = 0.9 * state["foreground"] + 0.1 * count  # BUG: a new tensor; no replay reads it
        else:
            state["foreground"].lerp_(count, 0.1)
        distance = F.smooth_l1_loss(moved, batch["targets"].flatten(0, 1))
        loss = focal / state["foreground"] + distance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        generator = _generator(seed, index)
        corner = 2 + 18 * torch.rand(4, 6, 2, generator=generator)
        boxes = torch.cat([corner, corner + 10], -1)
        y = (torch.rand(24, 4, generator=generator) < 0.3).float()
        x = torch.randn(4, 3, 32, 32, generator=generator)
        x[:, 0] += y.reshape(4, -1).mean(1)[:, None, None]
        tensors = {"x": x, "boxes": boxes, "targets": boxes + 0.5, "y": y}
        return {name: tensor.to(DEVICE) for name, tensor in tensors.items()}

    return step, batch, model


def make_torchmetrics_ssim(seed=0):
    """An autoencoder with torchmetrics' structural similarity as a loss."""
    from torchmetrics.aggregation import RunningMean
    from torchmetrics.functional.image import structural_similarity_index_measure

    bug = BUG == "torchmetrics_ssim"
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 8, 3, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 16, 4, 2, 1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, 2, 1),
        nn.Sigmoid(),
    ).to(DEVICE)
    optimizer = torch.optim.RAdam(model.parameters(), lr=1e-2, capturable=CUDA)
    running = RunningMean(window=5, nan_strategy="disable").to(DEVICE)

    def step(batch):
        x = torch.sigmoid(batch["x"])
        y = model(x)
        difference = F.l1_loss(y, x)
        scale = difference.detach()
        if bug:
            running.update(scale)  # BUG: a Python counter determines where a value is stored
            scale = running.compute()
        similarity = structural_similarity_index_measure(y, x, data_range=1.0, kernel_size=7)
        loss = 1 - similarity + difference / (1 + scale)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        blocks = torch.randn(8, 1, 4, 4, generator=_generator(seed, index))
        return {"x": blocks.repeat_interleave(8, 2).repeat_interleave(8, 3).to(DEVICE)}

    return step, batch, model


def make_vq_vae(seed=0):
    """vector-quantize-pytorch's SimVQ in an autoencoder."""
    from vector_quantize_pytorch import SimVQ

    bug = BUG == "vq_vae"
    torch.manual_seed(seed)
    quantizer = SimVQ(dim=16, codebook_size=32, channel_first=True)
    encoder = nn.Sequential(nn.Conv2d(1, 16, 4, 2, 1), nn.GELU(), nn.Conv2d(16, 16, 4, 2, 1))
    decoder = nn.Sequential(nn.Upsample(scale_factor=4), nn.Conv2d(16, 1, 3, 1, 1))
    model = nn.ModuleList([encoder, quantizer, decoder]).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, fused=True, capturable=CUDA)
    updates = 0

    def step(batch):
        nonlocal updates
        x = batch["x"]
        quantized, _, commitment = quantizer(encoder(x))
        updates += 1
        weight = min(1.0, updates / 20) if bug else 1.0  # BUG: a Python number that grows; no replay changes it
        loss = F.l1_loss(decoder(quantized).clamp(-1, 1), x) + weight * commitment.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda index: {"x": _images(seed, index, channels=1, size=16)["x"]}, model


def make_diffusers_ddpm(seed=0):
    """diffusers' unconditional example: a small UNet learns noise; its weights are averaged."""
    from diffusers import DDPMScheduler, UNet2DModel
    from diffusers.training_utils import EMAModel

    bug = BUG == "diffusers_ddpm"
    torch.manual_seed(seed)
    model = UNet2DModel(
        sample_size=16,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(16, 32),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ).to(DEVICE)
    scheduler = DDPMScheduler(num_train_timesteps=100)
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=CUDA)
    ema = EMAModel(model.parameters(), decay=0.99, use_ema_warmup=True)
    averages = [parameter.detach().clone() for parameter in model.parameters()]

    def step(batch):
        clean = batch["x"]
        noise = torch.randn_like(clean)
        timesteps = torch.randint(0, 100, (clean.shape[0],), device=clean.device)
        noisy = scheduler.add_noise(clean, noise, timesteps)
        loss = F.mse_loss(model(noisy, timesteps).sample, noise)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if bug:
            ema.step(model.parameters())  # BUG: the decay is computed from a Python counter
        else:
            torch._foreach_lerp_(averages, [p.detach() for p in model.parameters()], 0.05)
        return loss

    return step, lambda index: {"x": _images(seed, index, channels=1, size=16)["x"]}, model


def make_spectral_gan(seed=0):
    """PyTorch's DCGAN example, with spectral norm and weight norm."""
    from torch.nn.utils.parametrizations import spectral_norm, weight_norm

    bug = BUG == "spectral_gan"
    torch.manual_seed(seed)
    generator = nn.Sequential(
        weight_norm(nn.ConvTranspose2d(8, 16, 4)),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        weight_norm(nn.ConvTranspose2d(16, 8, 4, 2, 1)),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 4, 2, 1),
        nn.Tanh(),
    ).to(DEVICE)
    critic = nn.Sequential(
        spectral_norm(nn.Conv2d(1, 16, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        spectral_norm(nn.Conv2d(16, 16, 4, 2, 1)),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        spectral_norm(nn.Linear(256, 1)),
    ).to(DEVICE)
    rates = {"lr": 2e-3, "betas": (0.5, 0.999), "fused": True, "capturable": CUDA}
    of_generator = torch.optim.Adam(generator.parameters(), **rates)
    of_critic = torch.optim.Adam(critic.parameters(), **rates)
    state = {"calls": 0}

    def step(batch):
        real = batch["x"]
        fake = generator(torch.randn(real.shape[0], 8, 1, 1, device=real.device))
        of_critic.zero_grad()
        loss = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake.detach())).mean()
        loss.backward()
        of_critic.step()
        state["calls"] += 1
        if not bug or state["calls"] % 5 == 0:  # BUG: only every fifth call; a replay does not decide
            of_generator.zero_grad()
            (-critic(fake).mean()).backward()
            of_generator.step()
        return loss

    def batch(index):
        return {"x": torch.tanh(_images(seed, index, channels=1, size=16)["x"])}

    return step, batch, nn.ModuleList([generator, critic])


# Language


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
        )
    )


def make_peft_dora(seed=0):
    """peft's DoRA on a small Llama."""
    from peft import LoraConfig, get_peft_model

    bug = BUG == "peft_dora"
    torch.manual_seed(seed)
    config = LoraConfig(
        r=4,
        lora_alpha=8,
        use_dora=True,
        lora_dropout=0.05,
        target_modules=["q_proj", "v_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(_llama(), config).to(DEVICE)
    model.train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2, fused=True, capturable=CUDA)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.95**n)

    def step(batch):
        optimizer.zero_grad()
        loss = model(input_ids=batch["tokens"], labels=batch["tokens"]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if bug:
            scheduler.step()  # BUG: the learning rate is a Python number
        return loss

    return step, lambda index: _tokens(seed, index), model


def make_peft_adalora(seed=0):
    """peft's AdaLoRA on a small Llama."""
    from peft import AdaLoraConfig, get_peft_model

    bug = BUG == "peft_adalora"
    torch.manual_seed(seed)
    config = AdaLoraConfig(
        init_r=6,
        target_r=2,
        tinit=5,
        tfinal=20,
        deltaT=5,
        total_step=60,
        target_modules=["q_proj", "v_proj", "down_proj"],
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(_llama(), config).to(DEVICE)
    model.train()
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-2, fused=True, capturable=CUDA)
    updates = 0

    def step(batch):
        nonlocal updates
        loss = model(input_ids=batch["tokens"], labels=batch["tokens"]).loss
        loss.backward()
        optimizer.step()
        updates += 1
        if bug:
            model.base_model.update_and_allocate(updates)  # BUG: drops ranks from step 5 on; no replay does
        optimizer.zero_grad()
        return loss

    return step, lambda index: _tokens(seed, index), model


def make_hf_bert(seed=0):
    """A small BERT that fills in masked tokens, with dropout."""
    from transformers import BertConfig, BertForMaskedLM

    bug = BUG == "hf_bert"
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
    )
    model = BertForMaskedLM(config).to(DEVICE)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True, capturable=CUDA)
    state = {"share": 0.15}

    def step(batch):
        tokens = batch["tokens"]
        masked = torch.rand(tokens.shape, device=tokens.device) < state["share"]
        if bug:
            state["share"] = min(0.5, state["share"] + 0.01)  # BUG: a Python number that grows; no replay changes it
        inputs = tokens.masked_fill(masked, 3)
        loss = model(input_ids=inputs, labels=tokens.masked_fill(~masked, -100)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda index: _tokens(seed, index, count=16, vocabulary=16), model


def make_hf_mixtral(seed=0):
    """A small Mixtral, with the loss that balances its experts."""
    from transformers import MixtralConfig, MixtralForCausalLM

    bug = BUG == "hf_mixtral"
    torch.manual_seed(seed)
    config = MixtralConfig(
        vocab_size=128,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        max_position_embeddings=64,
        output_router_logits=True,
        experts_implementation="batched_mm",
    )
    model = MixtralForCausalLM(config).to(DEVICE)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=True, capturable=CUDA)
    updates = 0

    def step(batch):
        nonlocal updates
        updates += 1
        if bug:
            model.router_aux_loss_coef = 0.02 * min(1.0, updates / 20)  # BUG: a Python number; no replay changes it
        loss = model(**batch, labels=batch["input_ids"]).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        tokens = _tokens(seed, index)["tokens"]  # without a mask, the loss needs a host sync to count tokens
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    return step, batch, model


def make_hf_gpt2(seed=0):
    """A small GPT-2 with gradient checkpointing, without dropout."""
    from transformers import GPT2Config, GPT2LMHeadModel

    bug = BUG == "hf_gpt2"
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=128,
        n_positions=64,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model = GPT2LMHeadModel(config).to(DEVICE)
    model.train()
    model.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=True, capturable=CUDA)
    model.rehearsed = torch.zeros(2, 16, dtype=torch.long, device=DEVICE)

    def step(batch):
        tokens = torch.cat([batch["tokens"], model.rehearsed])
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if bug:
            model.rehearsed = batch["tokens"][:2]  # BUG: refers to the new batch, instead of a copy
        else:
            model.rehearsed.copy_(batch["tokens"][:2])
        return loss

    return step, lambda index: _tokens(seed, index), model


def make_hf_mamba(seed=0):
    """A small Mamba, by its plain PyTorch path."""
    from transformers import MambaConfig, MambaForCausalLM

    bug = BUG == "hf_mamba"
    torch.manual_seed(seed)
    config = MambaConfig(
        vocab_size=128,
        hidden_size=32,
        state_size=4,
        num_hidden_layers=2,
        use_cache=False,
        use_mambapy=False,
    )
    model = MambaForCausalLM(config).to(DEVICE)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, fused=True, capturable=CUDA)
    updates = 0

    def step(batch):
        nonlocal updates
        loss = model(input_ids=batch["tokens"], labels=batch["tokens"]).loss
        optimizer.zero_grad()
        loss.backward()
        updates += 1
        for group in optimizer.param_groups if bug else ():
            group["weight_decay"] = 0.01 * updates  # BUG: a Python number that grows; no replay changes it
        optimizer.step()
        return loss

    return step, lambda index: _tokens(seed, index, length=12), model


def make_hf_dpo(seed=0):
    """Direct preference optimization of a small Llama against a frozen copy."""
    import copy

    bug = BUG == "hf_dpo"
    torch.manual_seed(seed)
    policy = _llama().to(DEVICE)
    reference = copy.deepcopy(policy).requires_grad_(False).eval()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3, fused=True, capturable=CUDA)
    updates = 0

    def log_probability(model, tokens):
        logits = model(input_ids=tokens).logits[:, :-1]
        return logits.log_softmax(-1).gather(-1, tokens[:, 1:, None]).sum((1, 2))

    def step(batch):
        nonlocal updates
        updates += 1
        if bug and updates % 10 == 0:  # BUG: every tenth call renews the reference; no replay does
            reference.load_state_dict(policy.state_dict())
        margins = []
        for tokens in (batch["chosen"], batch["rejected"]):
            with torch.no_grad():
                frozen = log_probability(reference, tokens)
            margins.append(log_probability(policy, tokens) - frozen)
        loss = -F.logsigmoid(0.1 * (margins[0] - margins[1])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        chosen = _tokens(seed, index)["tokens"]
        return {"chosen": chosen, "rejected": chosen.flip(1).contiguous()}

    return step, batch, policy


def make_xtransformers_gpt(seed=0):
    """x-transformers' README: a decoder with rotary positions, some inputs masked."""
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    bug = BUG == "xtransformers_gpt"
    torch.manual_seed(seed)
    decoder = Decoder(dim=32, depth=2, heads=4, attn_dim_head=32, rotary_pos_emb=True)
    net = TransformerWrapper(num_tokens=128, max_seq_len=32, attn_layers=decoder)
    model = AutoregressiveWrapper(net, mask_prob=0.15).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, fused=True, capturable=CUDA)
    state = {"updates": 0}

    def step(batch):
        state["updates"] += 1
        if bug:
            model.mask_prob = 0.15 + 0.02 * min(state["updates"], 20)  # BUG: a Python number; no replay changes it
        loss = model(batch["tokens"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, lambda index: _tokens(seed, index), model


def make_schedulefree_lstm(seed=0):
    """An LSTM that predicts the next token; the bug is the optimizer of schedulefree."""
    from schedulefree import AdamWScheduleFree

    bug = BUG == "schedulefree_lstm"
    torch.manual_seed(seed)
    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(128, 32),
            "lstm": nn.LSTM(32, 32, num_layers=2, batch_first=True),
            "head": nn.Linear(32, 128),
        }
    ).to(DEVICE)
    if bug:
        # BUG: AdamWScheduleFree counts its steps and its weights in Python numbers.
        optimizer = AdamWScheduleFree(model.parameters(), lr=1e-2, warmup_steps=10, foreach=True)
        optimizer.train()
    else:
        optimizer = torch.optim.Adamax(model.parameters(), lr=1e-2, capturable=CUDA)

    def step(batch):
        tokens = batch["tokens"]
        hidden, _ = model["lstm"](model["embedding"](tokens[:, :-1]))
        loss = F.cross_entropy(model["head"](hidden).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda index: _tokens(seed, index), model


def make_torchao_qat(seed=0):
    """torchao's quantization-aware training: int8 activations, int4 weights."""
    from torchao.quantization import quantize_
    from torchao.quantization.qat import IntxFakeQuantizeConfig, QATConfig

    bug = BUG == "torchao_qat"
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(128, 32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32), nn.Linear(32, 128))
    activations = IntxFakeQuantizeConfig(torch.int8, "per_token", is_symmetric=False)
    weights = IntxFakeQuantizeConfig(torch.int4, group_size=16)
    quantize_(model, QATConfig(activation_config=activations, weight_config=weights, step="prepare"))
    model.to(DEVICE)
    fakes = [module for module in model.modules() if hasattr(module, "enabled")]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True, capturable=CUDA)
    updates = 0

    def step(batch):
        nonlocal updates
        updates += 1
        for fake in fakes if bug else ():
            fake.enabled = updates > 10  # BUG: quantized from step 11 on; no replay does this
        tokens = batch["tokens"]
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda index: _tokens(seed, index, count=8), model


def make_fabric_gru(seed=0):
    """Lightning Fabric with bfloat16: a GRU cell reads the target or its own answer."""
    from lightning_fabric import Fabric

    bug = BUG == "fabric_gru"
    torch.manual_seed(seed)
    fabric = Fabric(accelerator=DEVICE, devices=1, precision="bf16-mixed")

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(128, 32), nn.Linear(32, 128)
            self.encoder, self.cell = nn.GRU(32, 32, batch_first=True), nn.GRUCell(32, 32)

        def forward(self, tokens, forced):
            embedded = self.embedding(tokens)
            _, hidden = self.encoder(embedded[:, :8])
            hidden, seen, logits = hidden[0], embedded[:, 7], []
            for position in range(8, 12):
                hidden = self.cell(seen, hidden.to(seen.dtype))
                logits.append(self.head(hidden))
                answer = self.embedding(logits[-1].argmax(-1))
                seen = embedded[:, position] if forced else answer
            return torch.stack(logits, 1)

    module = Decoder()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2, fused=True, capturable=CUDA)
    model, optimizer = fabric.setup(module, optimizer)
    draws = random.Random(seed)

    def step(batch):
        optimizer.zero_grad()
        forced = draws.random() < 0.5 if bug else True  # BUG: drawn only once, for all replays
        logits = model(batch["tokens"], forced)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch["tokens"][:, 8:12].flatten())
        fabric.backward(loss)
        optimizer.step()
        return loss

    return step, lambda index: _tokens(seed, index, count=8, length=12), model


def make_sentences_contrast(seed=0):
    """sentence-transformers' ranking loss on static embeddings, with a queue of negatives."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import MultipleNegativesRankingLoss
    from sentence_transformers.models import StaticEmbedding
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    bug = BUG == "sentences_contrast"
    torch.manual_seed(seed)
    tokenizer = Tokenizer(WordLevel({f"w{index}": index for index in range(128)}, "w0"))
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=32)], device=DEVICE)
    model.train()
    ranking = MultipleNegativesRankingLoss(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True, capturable=CUDA)
    queue = torch.randn(32, 32, device=DEVICE)
    state = {"pointer": 0}

    def step(batch):
        loss = ranking([dict(batch["anchor"]), dict(batch["positive"])], None)
        anchor = F.normalize(model(dict(batch["anchor"]))["sentence_embedding"], dim=-1)
        loss = loss + 0.1 * (anchor @ F.normalize(queue, dim=-1).T).exp().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if bug:
            queue[state["pointer"] : state["pointer"] + 8] = anchor.detach()
            state["pointer"] = (state["pointer"] + 8) % 32  # BUG: all replays write to the same place
        else:
            queue.copy_(torch.cat([queue[8:], anchor.detach()]))
        return loss

    def batch(index):
        tokens = _tokens(seed, index, count=8, length=5)["tokens"]
        offsets = torch.arange(0, 40, 5, device=DEVICE)
        return {
            "anchor": {"input_ids": tokens.flatten(), "offsets": offsets},
            "positive": {"input_ids": ((tokens + 1) % 128).flatten(), "offsets": offsets.clone()},
        }

    return step, batch, model


# Graphs


def make_pyg_gcn(seed=0):
    """PyG's GCN on one graph; each step trains on some of its nodes."""
    from torch_geometric.nn import GCNConv

    bug = BUG == "pyg_gcn"
    torch.manual_seed(seed)
    model = nn.ModuleList([GCNConv(16, 32, cached=True), GCNConv(32, 8, cached=True)]).to(DEVICE)
    y = torch.randint(0, 8, (200,))
    x = (torch.randn(200, 16) + 2 * F.one_hot(y, 16)).to(DEVICE)
    y = y.to(DEVICE)
    edges = torch.randint(0, 200, (2, 800)).to(DEVICE)
    draws = random.Random(seed)

    def forward(x):
        x = F.dropout(x, p=0.3, training=model.training)
        x = F.dropout(model[0](x, edges).relu(), p=0.3, training=model.training)
        return model[1](x, edges)

    model.train()
    forward(x)  # computes the cached, normalized edges
    optimizer = torch.optim.Adam(
        [
            {"params": model[0].parameters(), "weight_decay": 5e-4},
            {"params": model[1].parameters(), "weight_decay": 0},
        ],
        lr=0.01,
        fused=True,
        capturable=CUDA,
    )

    def step(batch):
        optimizer.zero_grad()
        scale = draws.uniform(0.8, 1.2) if bug else 1.0  # BUG: drawn only once, for all replays
        out = forward(x * scale)
        loss = F.cross_entropy(out[batch], y[batch])
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        return torch.randperm(200, generator=_generator(seed, index))[:64].to(DEVICE)

    return step, batch, model


def make_pyg_gin(seed=0):
    """PyG's GIN over small graphs: sums over edges, then over each graph."""
    from torch_geometric.nn import GIN, global_add_pool

    bug = BUG == "pyg_gin"
    torch.manual_seed(seed)
    gin = GIN(in_channels=8, hidden_channels=32, num_layers=3, out_channels=32, dropout=0.1)
    model = nn.ModuleDict({"gin": gin, "head": nn.Linear(32, 2)}).to(DEVICE)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3, capturable=CUDA)
    earlier = {"x": torch.zeros(96, 8, device=DEVICE)}

    def step(batch):
        x = batch["x"] + 0.1 * earlier["x"]
        if bug:
            earlier["x"] = batch["x"]  # BUG: refers to the new batch, instead of a copy
        else:
            earlier["x"].copy_(batch["x"])
        pooled = global_add_pool(model["gin"](x, batch["edges"]), batch["graph"], size=8)
        loss = F.cross_entropy(model["head"](pooled), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        generator = _generator(seed, index)
        y = torch.randint(0, 2, (8,), generator=generator)
        graph = torch.arange(8).repeat_interleave(12)
        edges = torch.randint(0, 12, (2, 8, 30), generator=generator)
        edges = (edges + 12 * torch.arange(8)[None, :, None]).flatten(1)
        x = torch.randn(96, 8, generator=generator) + y[graph][:, None]
        tensors = {"x": x, "edges": edges, "graph": graph, "y": y}
        return {name: tensor.to(DEVICE) for name, tensor in tensors.items()}

    return step, batch, model


# Audio and time series


def make_audio_keywords(seed=0):
    """torchaudio's mel spectrograms, and a convolution over time that names the pitch."""
    from torchaudio.transforms import AmplitudeToDB, FrequencyMasking, MelSpectrogram

    bug = BUG == "audio_keywords"
    torch.manual_seed(seed)
    features = nn.Sequential(
        MelSpectrogram(sample_rate=8000, n_fft=256, hop_length=128, n_mels=20), AmplitudeToDB()
    ).to(DEVICE)
    masking = FrequencyMasking(freq_mask_param=6)
    model = nn.Sequential(nn.Conv1d(20, 32, 3), nn.BatchNorm1d(32), nn.ReLU(), nn.AdaptiveAvgPool1d(1))
    model = nn.Sequential(model, nn.Flatten(), nn.Linear(32, 8)).to(DEVICE)
    optimizer = torch.optim.Adadelta(model.parameters(), lr=0.5, capturable=CUDA)

    def step(batch):
        spectrogram = features(batch["x"]) / 40
        if bug:
            spectrogram = masking(spectrogram)  # BUG: the masked band is drawn on the host, only once
        loss = F.cross_entropy(model(spectrogram), batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda index: _waves(seed, index), model


def make_audio_ctc(seed=0):
    """torchaudio's Conformer with a CTC loss."""
    from torchaudio.models import Conformer

    bug = BUG == "audio_ctc"
    torch.manual_seed(seed)
    conformer = Conformer(
        input_dim=16,
        num_heads=2,
        ffn_dim=32,
        num_layers=1,
        depthwise_conv_kernel_size=5,
        dropout=0.1,
    )
    model = nn.ModuleDict({"conformer": conformer, "head": nn.Linear(16, 12)}).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True, capturable=CUDA)
    updates = 0

    def step(batch):
        nonlocal updates
        hidden, lengths = model["conformer"](batch["x"], batch["lengths"])
        scores = model["head"](hidden).log_softmax(-1)
        updates += 1
        weight = 0.01 * updates if bug else 0.1  # BUG: a Python number that grows; no replay changes it
        loss = F.ctc_loss(scores.transpose(0, 1), batch["y"], lengths, batch["y_lengths"])
        loss = loss + weight * scores.exp().square().sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        generator = _generator(seed, index)
        y = torch.randint(1, 12, (4, 5), generator=generator)
        x = F.one_hot(y.repeat_interleave(4, 1), 16) + 0.1 * torch.randn(4, 20, 16, generator=generator)
        lengths, y_lengths = torch.full((4,), 20), torch.full((4,), 5)
        tensors = {"x": x, "lengths": lengths, "y": y, "y_lengths": y_lengths}
        return {name: tensor.to(DEVICE) for name, tensor in tensors.items()}

    return step, batch, model


def make_accelerate_tcn(seed=0):
    """accelerate's loop with bfloat16: causal, dilated convolutions forecast a series."""
    from accelerate import Accelerator

    bug = BUG == "accelerate_tcn"
    torch.manual_seed(seed)
    # BUG: with 2, a Python counter determines which calls update.
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=2 if bug else 1)
    layers = [
        (nn.ConstantPad1d((2 * dilation, 0), 0.0), nn.Conv1d(wide, 16, 3, dilation=dilation), nn.ReLU())
        for wide, dilation in ((1, 1), (16, 2), (16, 4))
    ]
    model = nn.Sequential(*[layer for block in layers for layer in block], nn.Conv1d(16, 1, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True, capturable=CUDA)
    model, optimizer = accelerator.prepare(model, optimizer)

    def step(batch):
        with accelerator.accumulate(model):
            series = batch["x"][:, None]
            loss = F.huber_loss(model(series[..., :-1]), series[..., 1:])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return step, lambda index: {"x": _waves(seed, index, length=64)["x"]}, model


def make_torchdiffeq_ode(seed=0):
    """torchdiffeq's demo: a small network learns a spiral's field."""
    from torchdiffeq import odeint

    bug = BUG == "torchdiffeq_ode"
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2)).to(DEVICE)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3, capturable=CUDA)
    times = torch.linspace(0.0, 1.0, 5, device=DEVICE)
    matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]], device=DEVICE)
    updates = 0

    def step(batch):
        nonlocal updates
        with torch.no_grad():
            true = odeint(lambda t, y: y**3 @ matrix, batch["x"], times, method="rk4")
        predicted = odeint(lambda t, y: model(y**3), batch["x"], times, method="rk4")
        updates += 1
        weight = 1.0 / updates if bug else 0.1  # BUG: a Python number that falls; no replay changes it
        loss = (predicted - true).abs().mean() + weight * model[0].weight.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        return {"x": (2 * torch.rand(16, 2, generator=_generator(seed, index)) - 1).to(DEVICE)}

    return step, batch, model


# Tables and others


def make_lion_dlrm(seed=0):
    """Embedding bags and a small network, trained by Lion."""
    from lion_pytorch import Lion

    bug = BUG == "lion_dlrm"
    torch.manual_seed(seed)
    model = nn.ModuleDict(
        {
            "bag": nn.EmbeddingBag(16, 8, mode="sum"),
            "numbers": nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
            "top": nn.Sequential(nn.Linear(17, 16), nn.ReLU(), nn.Linear(16, 1)),
        }
    ).to(DEVICE)
    optimizer = Lion(model.parameters(), lr=1e-2, weight_decay=1e-2)

    def step(batch):
        bag, numbers = model["bag"](batch["c"]), model["numbers"](batch["x"])
        product = (bag * numbers).sum(1, keepdim=True)
        logits = model["top"](torch.cat([bag, numbers, product], 1))[:, 0]
        loss = F.binary_cross_entropy_with_logits(logits, batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if bug:
            optimizer.param_groups[0]["lr"] *= 0.95  # BUG: a Python number that falls; no replay changes it
        return loss

    return step, lambda index: _rows(seed, index), model


def make_sam_tabular(seed=0):
    """pytorch-optimizer's SAM: two backward passes a step; layers with weight norm."""
    from pytorch_optimizer import SAM
    from torch.nn.utils.parametrizations import weight_norm

    bug = BUG == "sam_tabular"
    torch.manual_seed(seed)
    model = nn.ModuleDict(
        {
            "categories": nn.Embedding(16, 4),
            "top": nn.Sequential(weight_norm(nn.Linear(24, 32)), nn.SiLU(), weight_norm(nn.Linear(32, 1))),
        }
    ).to(DEVICE)
    optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.05, lr=0.2)
    updates = 0

    def loss_of(batch):
        inputs = torch.cat([batch["x"], model["categories"](batch["c"]).flatten(1)], 1)
        return F.binary_cross_entropy_with_logits(model["top"](inputs)[:, 0], batch["y"])

    def step(batch):
        nonlocal updates
        updates += 1
        if bug:
            optimizer.param_groups[0]["rho"] = 0.01 * updates  # BUG: a Python number that grows; no replay changes it
        loss = loss_of(batch)
        loss.backward()
        optimizer.first_step(zero_grad=True)
        loss_of(batch).backward()
        optimizer.second_step(zero_grad=True)
        return loss

    return step, lambda index: _rows(seed, index), model


def make_gpytorch_svgp(seed=0):
    """GPyTorch's example: a stochastic variational Gaussian process."""
    import gpytorch

    bug = BUG == "gpytorch_svgp"
    torch.manual_seed(seed)

    class Process(gpytorch.models.ApproximateGP):
        def __init__(self, inducing):
            distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
            super().__init__(gpytorch.variational.VariationalStrategy(self, inducing, distribution))
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    model = Process(torch.linspace(-2, 2, 16)[:, None]).to(DEVICE)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(DEVICE)
    both = nn.ModuleList([model, likelihood]).train()
    optimizer = torch.optim.Adam(both.parameters(), lr=0.02, fused=True, capturable=CUDA)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=1000)
    updates = 0

    def step(batch):
        nonlocal updates
        updates += 1
        if bug:
            bound.beta = min(1.0, updates / 20)  # BUG: a Python number that grows; no replay changes it
        optimizer.zero_grad()
        loss = -bound(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        generator = _generator(seed, index)
        x = 4 * torch.rand(32, 1, generator=generator) - 2
        y = torch.sin(3 * x[:, 0]) + 0.1 * torch.randn(32, generator=generator)
        return {"x": x.to(DEVICE), "y": y.to(DEVICE)}

    return step, batch, both


def make_cleanrl_dqn(seed=0):
    """CleanRL's DQN update: a temporal difference against a target network."""
    import copy

    bug = BUG == "cleanrl_dqn"
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4)).to(DEVICE)
    target = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, fused=True, capturable=CUDA)
    state = {"updates": 0}

    def step(batch):
        with torch.no_grad():
            best = target(batch["next"]).max(1).values
            wanted = batch["reward"] + 0.9 * best * (1 - batch["done"])
        value = model(batch["x"]).gather(1, batch["action"][:, None])[:, 0]
        loss = F.smooth_l1_loss(value, wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        state["updates"] += 1
        if bug and state["updates"] % 10 == 0:  # BUG: only every tenth call; no replay does this
            target.load_state_dict(model.state_dict())
        elif not bug:
            for old, new in zip(target.parameters(), model.parameters(), strict=True):
                old.lerp_(new.detach(), 0.05)
        return loss

    def batch(index):
        generator = _generator(seed, index)
        x = torch.randn(64, 8, generator=generator)
        action = torch.randint(0, 4, (64,), generator=generator)
        tensors = {
            "x": x,
            "action": action,
            "next": 0.9 * x + 0.1 * torch.randn(64, 8, generator=generator),
            "reward": x.gather(1, action[:, None])[:, 0],
            "done": (torch.rand(64, generator=generator) < 0.1).float(),
        }
        return {name: tensor.to(DEVICE) for name, tensor in tensors.items()}

    return step, batch, model


# Fifteen trainers that were all written before the first of them was tried


def make_prodigy_gru(seed=0):
    """A GRU that predicts the next token, trained by Prodigy."""
    from prodigyopt import Prodigy

    bug = BUG == "prodigy_gru"
    torch.manual_seed(seed)
    model = nn.ModuleDict(
        {"embedding": nn.Embedding(128, 32), "gru": nn.GRU(32, 32, batch_first=True), "head": nn.Linear(32, 128)}
    ).to(DEVICE)
    optimizer = Prodigy(model.parameters(), lr=1.0, weight_decay=0.01)
    earlier = [torch.zeros(4, 16, dtype=torch.long, device=DEVICE)]

    def step(batch):
        tokens = batch["tokens"]
        embedded = model["embedding"](tokens[:, :-1])
        if bug:
            embedded = embedded + 0.3 * model["embedding"](earlier[-1][:, :-1])
            earlier[:] = [tokens]  # BUG: a replay puts nothing into a list
        hidden, _ = model["gru"](embedded)
        loss = F.cross_entropy(model["head"](hidden).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda index: _tokens(seed, index), model


def make_came_encoder(seed=0):
    """torch's encoder layers, trained by CAME."""
    from came_pytorch import CAME

    bug = BUG == "came_encoder"
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True)
    model = nn.Sequential(nn.Embedding(128, 32), nn.TransformerEncoder(layer, 2), nn.Linear(32, 128)).to(DEVICE)
    optimizer = CAME(model.parameters(), lr=2e-3, weight_decay=1e-2, betas=(0.9, 0.999, 0.9999), eps=(1e-30, 1e-16))
    state = {"updates": 0}

    def step(batch):
        tokens = batch["tokens"]
        loss = F.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(-1, 1).flatten())
        loss.backward()
        state["updates"] += 1
        if bug:
            optimizer.param_groups[0]["weight_decay"] = 0.1 * state["updates"]  # BUG: a Python number that grows
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, lambda index: _tokens(seed, index), model


def make_ema_denoiser(seed=0):
    """ema-pytorch's README on a small denoiser."""
    from ema_pytorch import EMA

    bug = BUG == "ema_denoiser"
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1), nn.SiLU(), nn.Conv2d(16, 3, 3, 1, 1)).to(DEVICE)
    ema = EMA(model, beta=0.99, update_after_step=10, update_every=2).to(DEVICE)  # else its step stays on the host
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True, capturable=CUDA)
    updates = 0

    def step(batch):
        nonlocal updates
        updates += 1
        noise = torch.randn_like(batch["x"]) * (0.02 * updates if bug else 0.5)  # BUG: a Python number that grows
        loss = F.mse_loss(model(batch["x"] + noise), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        ema.update()
        return loss

    return step, lambda index: _images(seed, index, size=16), model


def make_metric_softmax(seed=0):
    """pytorch-metric-learning's normalized softmax, whose proxies have an optimizer of their own."""
    from pytorch_metric_learning.losses import NormalizedSoftmaxLoss

    bug = BUG == "metric_softmax"
    torch.manual_seed(seed)
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(192, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 16))
    both = nn.ModuleDict({"trunk": trunk, "loss": NormalizedSoftmaxLoss(10, 16, temperature=0.1)}).to(DEVICE)
    optimizer = torch.optim.RMSprop(both["trunk"].parameters(), lr=1e-3, capturable=CUDA)
    proxies = torch.optim.SGD(both["loss"].parameters(), lr=0.1, momentum=0.9, nesterov=True)
    updates = 0

    def step(batch):
        nonlocal updates
        updates += 1
        if bug:
            both["loss"].temperature = 0.05 + 0.5 / updates  # BUG: a Python number that falls; no replay changes it
        optimizer.zero_grad()
        proxies.zero_grad()
        loss = both["loss"](both["trunk"](batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        proxies.step()
        return loss

    return step, lambda index: _images(seed, index, count=16, size=8), both


def make_skorch_rows(seed=0):
    """skorch's classifier; a step is its train_step with the callbacks of a batch."""
    from skorch import NeuralNetClassifier
    from skorch.callbacks import LRScheduler

    bug = BUG == "skorch_rows"
    torch.manual_seed(seed)

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 2))

        def forward(self, x):
            return self.layers(x)

    # BUG: after each batch, the callback sets the learning rate, which is a Python number.
    rate = LRScheduler(policy="StepLR", step_size=5, gamma=0.7, step_every="batch", event_name=None)
    net = NeuralNetClassifier(
        Network,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        optimizer__momentum=0.9,
        lr=0.1,
        train_split=None,
        callbacks=[rate] if bug else [],
        device=DEVICE,
        verbose=0,
    ).initialize()
    net.notify("on_train_begin", X=None, y=None)
    net.notify("on_epoch_begin", dataset_train=None, dataset_valid=None)

    def step(batch):
        pair = batch["x"], batch["y"].long()
        net.notify("on_batch_begin", batch=pair, training=True)
        answer = net.train_step(pair)
        net.notify("on_batch_end", batch=pair, training=True, **answer)
        return answer["loss"]

    return step, lambda index: _rows(seed, index), net.module_


def make_ignite_convolutions(seed=0):
    """pytorch-ignite's supervised training step, called as its engine calls it."""
    from ignite.engine import Engine, supervised_training_step

    bug = BUG == "ignite_convolutions"
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(16, 10),
    ).to(DEVICE)
    optimizer = torch.optim.ASGD(model.parameters(), lr=0.05, capturable=CUDA)
    update = supervised_training_step(
        model,
        optimizer,
        nn.CrossEntropyLoss(),
        device=DEVICE,
        output_transform=lambda x, y, y_pred, loss: loss,
        gradient_accumulation_steps=2 if bug else 1,  # BUG: the engine's counter determines when to update
    )
    engine = Engine(update)

    def step(batch):
        engine.state.iteration += 1
        return update(engine, (batch["x"], batch["y"]))

    return step, lambda index: _images(seed, index), model


def make_e3nn_points(seed=0):
    """e3nn's convolution over points: spherical harmonics, a tensor product, radial weights."""
    from e3nn import o3
    from e3nn.math import soft_one_hot_linspace
    from e3nn.nn import FullyConnectedNet

    bug = BUG == "e3nn_points"
    torch.manual_seed(seed)
    harmonics = o3.Irreps("0e + 1o")
    product = o3.FullyConnectedTensorProduct("4x0e", harmonics, "4x0e + 4x1o", shared_weights=False)
    model = nn.ModuleDict(
        {
            "radial": FullyConnectedNet([6, 16, product.weight_numel], F.silu),
            "product": product,
            "head": nn.Linear(16, 1),
        }
    ).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3, fused=True, capturable=CUDA)
    state = {"radius": 3.0}

    def step(batch):
        x = batch["x"]  # shape [clouds, points, 3]
        vectors = (x[:, :, None] - x[:, None]).flatten(0, 2)
        angles = o3.spherical_harmonics(harmonics, vectors + 1e-3, normalize=True, normalization="component")
        if bug:
            state["radius"] *= 0.97  # BUG: a Python number that falls; no replay changes it
        distances = soft_one_hot_linspace(vectors.norm(dim=1), 0.0, state["radius"], 6, basis="gaussian", cutoff=False)
        features = batch["features"][:, None].expand(-1, 6, -1, -1).flatten(0, 2)
        messages = model["product"](features, angles, model["radial"](distances))
        pooled = messages.unflatten(0, (4, 36)).mean(1)
        loss = F.mse_loss(model["head"](pooled)[:, 0], batch["y"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        generator = _generator(seed, index)
        x = torch.randn(4, 6, 3, generator=generator)
        features = torch.randn(4, 6, 4, generator=generator)
        tensors = {"x": x, "features": features, "y": x.square().mean((1, 2)) + features.mean((1, 2))}
        return {name: tensor.to(DEVICE) for name, tensor in tensors.items()}

    return step, batch, model


def make_zuko_spline(seed=0):
    """zuko's neural spline flow, fitted to two moons with a little noise."""
    import zuko

    bug = BUG == "zuko_spline"
    torch.manual_seed(seed)
    torch.distributions.Distribution.set_default_validate_args(False)
    flow = zuko.flows.NSF(features=2, transforms=2, hidden_features=(32, 32)).to(DEVICE)
    optimizer = torch.optim.AdamW(flow.parameters(), lr=3e-3, fused=True, capturable=CUDA)
    draws = random.Random(seed)

    def step(batch):
        scale = draws.uniform(0.0, 0.4) if bug else 0.1  # BUG: drawn only once, for all replays
        x = batch["x"] + scale * torch.randn_like(batch["x"])
        loss = -flow().log_prob(x).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimizer.step()
        return loss

    def batch(index):
        generator = _generator(seed, index)
        angle = 3.1416 * torch.rand(64, generator=generator)
        upper = (torch.rand(64, generator=generator) < 0.5).float()
        x = torch.stack([angle.cos() + 1 - upper, (2 * upper - 1) * angle.sin() + 0.5 - upper], 1)
        return {"x": x.to(DEVICE)}

    return step, batch, flow


def make_pyro_bayes(seed=0):
    """Pyro's tutorial on objectives: a Bayesian regression by the simplest ELBO."""
    import pyro
    from pyro import distributions as dist
    from pyro import poutine
    from pyro.infer.autoguide import AutoNormal
    from pyro.nn import PyroModule, PyroSample

    bug = BUG == "pyro_bayes"
    torch.manual_seed(seed)
    pyro.clear_param_store()
    pyro.enable_validation(False)
    torch.distributions.Distribution.set_default_validate_args(False)

    class Regression(PyroModule):
        def __init__(self):
            super().__init__()
            self.linear = PyroModule[nn.Linear](8, 1)
            zero, one = torch.zeros((), device=DEVICE), torch.ones((), device=DEVICE)
            self.linear.weight = PyroSample(dist.Normal(zero, one).expand([1, 8]).to_event(2))
            self.linear.bias = PyroSample(dist.Normal(zero, one).expand([1]).to_event(1))
            self.scale = one / 2

        def forward(self, x, y):
            mean = self.linear(x)[:, 0]
            with pyro.plate("rows", 32):
                pyro.sample("y", dist.Normal(mean, self.scale), obs=y)
            return mean

    regression = Regression().to(DEVICE)
    guide = AutoNormal(regression)
    first = _rows(seed, 0)
    guide(first["x"], first["y"])
    optimizer = torch.optim.Adam(guide.parameters(), lr=0.03, fused=True, capturable=CUDA)
    updates = 0

    def step(batch):
        nonlocal updates
        updates += 1
        guided = poutine.trace(guide).get_trace(batch["x"], batch["y"])
        modelled = poutine.trace(poutine.replay(regression, trace=guided)).get_trace(batch["x"], batch["y"])
        weight = min(1.0, updates / 20) if bug else 1.0  # BUG: a Python number that grows
        loss = weight * guided.log_prob_sum() - modelled.log_prob_sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda index: _rows(seed, index), guide


def make_snn_leaky(seed=0):
    """snnTorch's tutorial: leaky neurons over a few time steps; a potential goes on to the next batch."""
    import snntorch
    from snntorch import surrogate

    bug = BUG == "snn_leaky"
    torch.manual_seed(seed)
    spikes = surrogate.fast_sigmoid(slope=25)
    model = nn.ModuleDict(
        {
            "first": nn.Linear(192, 64),
            "leaky": snntorch.Leaky(beta=0.9, spike_grad=spikes),
            "second": nn.Linear(64, 10),
            "output": snntorch.Leaky(beta=0.9, spike_grad=spikes, reset_mechanism="none"),
        }
    ).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.999), fused=True, capturable=CUDA)
    state = {"potential": torch.zeros(8, 64, device=DEVICE)}

    def step(batch):
        current = model["first"](batch["x"].flatten(1))
        hidden, output = state["potential"], torch.zeros(8, 10, device=DEVICE)
        loss = 0.0
        for _ in range(5):
            spike, hidden = model["leaky"](current, hidden)
            _, output = model["output"](model["second"](spike), output)
            loss = loss + F.cross_entropy(output, batch["y"]) / 5
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if bug:
            state["potential"] = 0.5 * hidden.detach()  # BUG: a new tensor; no replay reads it
        else:
            state["potential"].copy_(0.5 * hidden.detach())
        return loss

    return step, lambda index: _images(seed, index, size=8), model


def make_kornia_ssim(seed=0):
    """A network that sharpens what kornia blurred, under kornia's losses."""
    import kornia
    import numpy as np

    bug = BUG == "kornia_ssim"
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 16, 5, 1, 2), nn.GELU(), nn.Conv2d(16, 3, 5, 1, 2), nn.Sigmoid()).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True, capturable=CUDA)
    draws = np.random.default_rng(seed)

    def step(batch):
        sharp = torch.sigmoid(batch["x"])
        sigma = float(draws.uniform(0.5, 3.0)) if bug else 1.5  # BUG: drawn only once, for all replays
        blurred = kornia.filters.gaussian_blur2d(sharp, (5, 5), (sigma, sigma))
        answer = model(blurred)
        loss = kornia.losses.ssim_loss(answer, sharp, window_size=5)
        loss = loss + kornia.losses.charbonnier_loss(answer, sharp, reduction="mean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda index: _images(seed, index, count=4, size=16), model


def make_opacus_private(seed=0):
    """opacus' parts: gradients of each sample, clipped and with noise."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer
    from opacus.schedulers import ExponentialNoise

    bug = BUG == "opacus_private"
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 10))
    model = GradSampleModule(model.to(DEVICE))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = DPOptimizer(optimizer, noise_multiplier=0.5, max_grad_norm=1.0, expected_batch_size=16)
    noise = ExponentialNoise(optimizer, gamma=0.9)

    def step(batch):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch["x"]), batch["y"])
        loss.backward()
        optimizer.step()
        if bug:
            noise.step()  # BUG: a Python number that falls; no replay changes it
        return loss

    return step, lambda index: _images(seed, index, count=16, size=8), model


def make_geoopt_poincare(seed=0):
    """geoopt's embeddings of a tree in the Poincare ball; the bug is its Adam."""
    import geoopt

    bug = BUG == "geoopt_poincare"
    torch.manual_seed(seed)
    ball = geoopt.PoincareBall()
    model = nn.ParameterDict({"nodes": geoopt.ManifoldParameter(0.01 * torch.randn(63, 8), manifold=ball)}).to(DEVICE)
    if bug:
        optimizer = geoopt.optim.RiemannianAdam(model.parameters(), lr=1e-2)  # BUG: counts its steps in Python
    else:
        optimizer = geoopt.optim.RiemannianSGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(batch):
        nodes = model["nodes"]
        child = nodes[batch["child"]][:, None]
        distances = ball.dist(child, nodes[batch["others"]])  # shape [rows, 1 + negatives]; the parent comes first
        loss = F.cross_entropy(-distances, torch.zeros_like(batch["child"]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def batch(index):
        generator = _generator(seed, index)
        child = torch.randint(1, 63, (32,), generator=generator)
        negatives = torch.randint(0, 63, (32, 7), generator=generator)
        others = torch.cat([(child[:, None] - 1) // 2, negatives], 1)
        return {"child": child.to(DEVICE), "others": others.to(DEVICE)}

    return step, batch, model


def make_performer_tokens(seed=0):
    """performer-pytorch's README on masked tokens: attention by random projections."""
    from performer_pytorch import PerformerLM
    from performer_pytorch.performer_pytorch import FastAttention

    bug = BUG == "performer_tokens"
    torch.manual_seed(seed)
    model = PerformerLM(num_tokens=129, max_seq_len=16, dim=32, depth=1, heads=2, dim_head=16, nb_features=16)
    model.to(DEVICE).fix_projection_matrices_()
    attentions = [module for module in model.modules() if isinstance(module, FastAttention)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True, capturable=CUDA)
    updates = 0

    def step(batch):
        nonlocal updates
        updates += 1
        for attention in attentions if bug and updates % 10 == 0 else ():  # BUG: every tenth call; no replay does this
            attention.redraw_projection_matrix(torch.device(DEVICE))
        masked = torch.rand(batch["tokens"].shape, device=DEVICE) < 0.2
        logits = model(torch.where(masked, 128, batch["tokens"]))
        losses = F.cross_entropy(logits.flatten(0, 1), batch["tokens"].flatten(), reduction="none")
        loss = (losses * masked.flatten()).sum() / masked.sum().clamp(min=1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step, lambda index: _tokens(seed, index, count=8), model


def make_tabnet_rows(seed=0):
    """pytorch-tabnet's network, with the loss and the clip of its own trainer."""
    from pytorch_tabnet.tab_network import TabNet

    bug = BUG == "tabnet_rows"
    torch.manual_seed(seed)
    model = TabNet(
        input_dim=12,
        output_dim=2,
        n_steps=2,
        cat_idxs=[8, 9, 10, 11],
        cat_dims=[16] * 4,
        cat_emb_dim=[2] * 4,
        virtual_batch_size=16,
        group_attention_matrix=torch.eye(12, device=DEVICE),
    ).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02, fused=True, capturable=CUDA)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=1000) if bug else None

    def step(batch):
        output, sparsity = model(torch.cat([batch["x"], batch["c"].float()], 1))
        loss = F.cross_entropy(output, batch["y"].long()) - 1e-3 * sparsity
        for parameter in model.parameters():
            parameter.grad = None
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if bug:
            cycle.step()  # BUG: the learning rate is a Python number
        return loss

    return step, lambda index: _rows(seed, index), model
