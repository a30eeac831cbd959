"""A small git repository of a user's trainer, whose commits differ by one file, and a contract of ten lines in it."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

TRAINER = """\
from harness.system.step_function import StepFunctionSystem
from {package}update import rate_at

class Trainer(StepFunctionSystem):
    def build(self, workload, arm):
        import torch

        weight = torch.ones(4, requires_grad=True)
        taken = []

        def step(batch):
            loss = ((weight * batch["x"]).sum() - 1) ** 2
            (gradient,) = torch.autograd.grad(loss, weight)
            weight.grad = gradient
            with torch.no_grad():
                weight.sub_(rate_at(len(taken)) * gradient)
            taken.append(None)
            return loss.detach()

        def batch(index):
            return {{"x": torch.randn(4, generator=torch.Generator().manual_seed(index))}}

        return step, batch, lambda: {{"weight": weight}}
"""
UPDATE = "def rate_at(step):\n    return 0.01\n"
OTHER_UPDATE = "def rate_at(step):\n    return 0.01 if step < 3 else 0.02\n"
LAST_UPDATE = "def rate_at(step):\n    return 0.01 if step < 7 else 0.02\n"
NEAR = "within, ends: {control: again, at_most: 0.01}"  # as `equality`
CONTRACT = """\
schema: contract/v1
id: as-main
title: Trains as main does
system: {package}trainer:Trainer
workloads: {{small: {{model: any, batch_size: 1, seq_len: 4, steps: 8, needs: {{device: cpu}}}}}}
arms: {{here: {{}}, main: {{}}, again: {{}}}}
claims:
  - {{id: SAME, title: Trains as main does, kind: trajectory_match, candidate: here, baseline: main,
     equality: {equality}, max_abs_difference: 1.0e-6, guards: {{steps: 8}},
     on: [small], why: a refactoring, if_fails: see the first step}}
"""
GRADIENTS = """\
  - {id: GRADIENTS, title: Its gradients are main's, kind: gradient_match, candidate: here, baseline: main,
     equality: within, max_abs_difference: 1.0e-6, steps: [0, 7], on: [small], why: a refactoring, if_fails: see}
"""


@dataclass(frozen=True)
class UserRepository:
    """A working tree; the trainer is in its `folder`, within a package if `package` names one (`name.`)."""

    root: Path
    folder: Path
    package: str = ""

    @classmethod
    def make(cls, root: Path, *, folder: str = ".", package: str = "") -> UserRepository:
        """Create a repository with one commit on `main`: the trainer, its update rule, the contract."""
        root.mkdir()
        made = cls(root, root / folder / package.removesuffix("."), package)
        made.git("init", "--quiet", "--initial-branch=main")
        made.folder.mkdir(parents=True, exist_ok=True)
        if package:
            (made.folder / "__init__.py").touch()
        (made.folder / "trainer.py").write_text(TRAINER.format(package=package))
        made.write("update.py", UPDATE)
        made.contract()
        made.commit("The first trainer")
        return made

    def contract(self, *claims: str, equality: str = "bitwise") -> Path:
        path = self.root / "as-main.yaml"
        path.write_text(CONTRACT.format(package=self.package, equality=equality) + "".join(claims))
        return path

    def write(self, name: str, text: str) -> None:
        (self.folder / name).write_text(text)

    def commit(self, subject: str) -> str:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "HEAD")

    def git(self, *arguments: str) -> str:
        author = ["-c", "user.name=A User", "-c", "user.email=user@example.org"]
        done = subprocess.run(
            ["git", *author, "-C", str(self.root), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def worktrees(self) -> int:
        """Return the number of worktrees that git knows, with the repository's own."""
        return len(self.git("worktree", "list").splitlines())
