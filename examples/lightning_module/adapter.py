"""A Lightning module as a system: the script's own trainer, driven by its loop or by its steps."""

from harness.extras.trainers.lightning_trainer import LightningSystem


class ScriptsFit(LightningSystem):
    name = "Lightning"
    arm_options = {**LightningSystem.arm_options, "learning_rate": float}

    def fit(self, workload, arm):
        from examples.lightning_module import train

        rate = arm.settings().get("learning_rate", 1e-2)
        size, length = workload.batch_size, workload.seq_len
        return train.make_fit(workload.seed, size, length, learning_rate=rate, quiet=True)
