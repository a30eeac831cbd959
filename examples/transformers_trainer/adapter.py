"""transformers' Trainer as a system: the script's own trainer, driven by its loop or by its steps."""

from harness.extras.trainers.transformers_trainer import TransformersTrainerSystem


class ScriptsTrainer(TransformersTrainerSystem):
    name = "transformers Trainer"
    arm_options = {**TransformersTrainerSystem.arm_options, "learning_rate": float}
    layers = 2

    def trainer(self, workload, arm):
        from examples.transformers_trainer import train

        rate = arm.settings().get("learning_rate", 3e-3)
        return train.make_trainer(
            train.make_model(), workload.batch_size, workload.seq_len, rate=rate, seed=workload.seed
        )
