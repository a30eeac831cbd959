"""A detector reads feature sizes from the device, so its capture fails, but the runner only logs a warning."""

import warnings

import torch
from torch import nn
from torch.nn import functional

from examples.field_bugs.bug import Bug
from examples.field_bugs.own_capture import OwnCaptures, fill, warm_up
from examples.field_bugs.small_training import DEVICE
from harness.system.step_function import StepFunction

BUG = Bug(
    title="A failed capture gives only a warning, and training continues uncaptured",
    thread="roboflow/rf-detr#1468",
    users_saw="With `cuda_graphs=True` a reviewer saw no speed-up, no use of the additional memory that a capture "
    "needs, and no obvious warning in the log.",
    cause="The sizes of the feature levels are in a tensor on the device. The model reads this tensor on the host in "
    "each pass, so the capture fails. The trainer only logs the failure and continues uncaptured.",
    fix="The sizes are Python numbers, or a tensor that is created once before the capture. If a requested capture "
    "fails, this should be an error.",
)


def buggy(seed, captured):
    return make_step(seed, captured, Detector)


def mended(seed, captured):
    return make_step(seed, captured, HostSizesDetector)


class Detector(nn.Module):
    """Queries look at one point of each of two levels of features, by weights that fall with the distance from it."""

    def __init__(self, width=16, queries=4):
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(1, width, 2, 2), nn.Conv2d(width, width, 2, 2)
        self.queries, self.points = nn.Parameter(torch.randn(queries, width)), nn.Linear(width, 4)
        self.box = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4))

    def forward(self, images):
        fine = self.fine(images)
        levels = [fine, self.coarse(functional.gelu(fine))]
        tokens = torch.cat([level.flatten(2).mT for level in levels], 1)
        return self.box(self.queries + self.seen(tokens, self.sizes(levels)))

    def sizes(self, levels):
        return torch.as_tensor([level.shape[2:] for level in levels], device=levels[0].device)

    def seen(self, tokens, sizes):
        points, found = self.points(self.queries).sigmoid().view(-1, 2, 2), 0
        for level, part in enumerate(tokens.split([int(height * width) for height, width in sizes], 1)):
            along = [torch.arange(int(size), device=part.device) / size for size in sizes[level]]
            found = found + (-8 * torch.cdist(points[:, level], torch.cartesian_prod(*along))).softmax(-1) @ part
        return found


class HostSizesDetector(Detector):
    def sizes(self, levels):
        return [level.shape[2:] for level in levels]


def make_step(seed, captured, detector):
    torch.manual_seed(seed)
    model = detector().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(3e-3), fused=True)
    captures, static, failed = OwnCaptures(captured), {}, []

    def passes():
        optimizer.zero_grad()
        loss = functional.l1_loss(model(static["images"]), static["boxes"])
        loss.backward()
        return loss.detach()

    def capture():
        try:
            warm_up(passes)
            captures.capture("step", passes, static, model.parameters())
        except Exception as error:
            failed.append(error)
            warnings.warn(f"the capture failed, training goes on without it: {error}", stacklevel=2)

    def step(batch):
        fill(static, batch)
        if captured and not captures.graphs and not failed:
            capture()
        replayed = bool(captures.graphs)
        captures.replays, captures.uncaptured = captures.replays + replayed, captures.uncaptured + (not replayed)
        loss = captures.graphs["step"].replay() if replayed else passes()
        optimizer.step()
        return loss.clone()

    def batch(index):
        """A box is how bright the squares of an image's quarter are."""
        generator = torch.Generator().manual_seed(100_000 * seed + index)
        squares = torch.rand(8, 1, 4, 4, generator=generator)
        images = functional.interpolate(squares, scale_factor=2) + 0.1 * torch.randn(8, 1, 8, 8, generator=generator)
        return {"images": images, "boxes": functional.unfold(squares, 2, stride=2).mT.contiguous()}

    return StepFunction(step=step, batch=batch, parameters=model, captured=captures.record)
