"""What usually causes that a comparison shows nothing or cannot be made, and what to do: by reason code."""

from __future__ import annotations

from typing import Final

TEXTS: Final[dict[str, tuple[str, str]]] = {
    "non_finite": (
        (
            "A number overflowed or was divided by zero: a learning rate too high, a mask that leaves a row "
            "empty, a data type too narrow, or memory that is read before it is written."
        ),
        (
            "look at the first step and tensor that are not finite, in both arms: where both have them, the "
            "model is unsound"
        ),
    ),
    "non_finite_end": (
        "The last update, or a buffer that no loss reads, went wrong behind the last recorded loss.",
        "look at the update of the named tensor: its gradient, its second moment and its epsilon",
    ),
    "unequal_start": (
        "The arms are seeded apart, are built in another order of random numbers, or a warm-up left its trace in one.",
        "seed before the model is built, and put parameters, buffers and generators back behind a warm-up",
    ),
    "unequal_lengths": (
        "One arm stopped early, or its loop counts a warm-up step as training.",
        "make `step(index)` train exactly once for every index, in every arm",
    ),
    "unequal_batches": (
        "A data loader that keeps its own position, shuffles by the global generator, or was read by a warm-up.",
        "make the batch a function of seed and index alone, and look at the first step that differs",
    ),
    "unequal_tokens": (
        "One arm pads, packs or cuts its sequences otherwise.",
        "give both arms batches of one shape, or name the input with the tokens `tokens`",
    ),
    "tensors_missing": (
        (
            "A trainable tensor has no gradient: it is not used, detached, or its gradient was set to None "
            "before it was read. Or a reference has fewer tensors than the arm that it is compared with."
        ),
        (
            "name only tensors that train as trainable, read gradients before they are cleared, and let a reference "
            "have each of them under the same name"
        ),
    ),
    "vacuous_steps": (
        "The workload has fewer steps than the guard asks for, or the arm ended early.",
        "raise the workload's `steps`, or find why the arm made fewer",
    ),
    "vacuous_nothing_compared": (
        "What the claim compares is empty for this system or workload.",
        "see the denominator that is 0, and give the claim something of that to compare",
    ),
    "vacuous_no_collective": (
        "The model was not wrapped for several ranks, so that each trained by itself.",
        "wrap it where the ranks are joined: `model = data_parallel(model)`",
    ),
    "vacuous_no_replica": (
        "The model is sharded: each rank holds parts that no other one has, so that no two could differ.",
        "demand what sharding is for, `share_at_most`, and compare with one process by `ranks_match`",
    ),
    "vacuous_parameters_unchanged": (
        "The optimizer has no parameters, its learning rate is 0, or it never steps.",
        "see that the update is part of the step, and that its learning rate is not 0",
    ),
    "vacuous_skipped_step": (
        "A gradient scaler found an overflow and left an update out, or the loop skips steps by itself.",
        "start with a smaller loss scale, or train in bfloat16, which needs none",
    ),
    "vacuous_batches_repeat": (
        (
            "The data gives the same batch again: a text shorter than the steps need, a loader that begins "
            "anew, or a batch that is made once and kept."
        ),
        "give every step a batch of its own: a function of seed and index, over enough data",
    ),
    "vacuous_clip_inactive": (
        "Gradient norms stay below the threshold, so that the clip never had anything to do.",
        "lower the threshold of the clip in the contract's arms, until it acts in as many steps as the guard asks for",
    ),
    "vacuous_training_effect": (
        (
            "Nothing is learned in so few steps: a learning rate too low, labels unrelated to inputs, an update "
            "that is lost."
        ),
        "see that the loss of the trained arm falls below the control's; if it should, train more steps",
    ),
    "trained_too_little": (
        "The learning rate is too low, or still warms up, so that wrong training would look the same.",
        "train more steps, or with the learning rate that training has later",
    ),
    "vacuous_constant_loss": (
        "The step returns a loss that was computed once, or one that depends on no batch.",
        "return the loss of this step's batch, and not a tensor that was filled before",
    ),
    "vacuous_constant_metric": (
        "The adapter returns a metric that is never computed again.",
        "compute the metric in every step at which it is asked for",
    ),
    "vacuous_control_differs": (
        "The untrained control is set otherwise than the candidate in more than its learning rate.",
        "give both arms equal settings but for `learning_rate: 0`",
    ),
    "vacuous_baseline_captured": (
        "The arm's setting for capture is not obeyed, so both arms are the captured step.",
        "see that the adapter captures nothing in an arm with `capture: none`",
    ),
    "vacuous_gradients_zero": (
        "The loss does not depend on the trainable parameters, or gradients were cleared before they were read.",
        "read gradients between backward and clearing, and see that the loss is not detached",
    ),
    "vacuous_precision": (
        "An arm computes in the data type of the checkpoint, or of an autocast, and not in its setting's.",
        "set the data type that the claim names in the contract's arms, and state it in the facts of the run",
    ),
    "vacuous_parameter_dtype": (
        "Parameters were cast when the model was loaded or moved.",
        "load the trainable parameters in the data type that the claim names",
    ),
    "vacuous_control_no_sync": (
        "The control that must wait for the device does not: its `.item()` was taken away or moved out of the step.",
        "make the control arm read a number from the device in every step",
    ),
    "vacuous_detector_blind": (
        "Something else subscribes to the profiler or changes torch's dispatch, so that no detector sees a sync.",
        "run it without another profiler, debugger or dispatch mode",
    ),
    "vacuous_no_kernels": (
        "The system lists no kernels: its inventory is empty, or was filled before it was watched.",
        "give the adapter's kernel inventory every kernel that a step uses",
    ),
    "vacuous_peer": (
        "The tolerance allows little more than one rounding of the outputs' type, which every peer is granted.",
        "leave `over_peer_at_most` out, or lower it; it says most of outputs in float32",
    ),
    "vacuous_no_buffers": (
        "The capture names no static buffers.",
        "name what the graph reads and others write: its batch, or gradients where the optimizer alone is captured",
    ),
    "vacuous_no_memory": (
        "The system reports the memory of another device, or of none.",
        "report bytes allocated and reserved on the device that trains",
    ),
    "vacuous_memory_not_filled": (
        "Memory was left, so that a late allocation had room.",
        "fill the device until an allocation fails, before the judged steps",
    ),
    "vacuous_nothing_to_load": (
        "The loading process trained or started with the same parameters, so that a load could change nothing.",
        "let the loading process start from another seed",
    ),
    "vacuous_nothing_saved": (
        "The adapter writes its checkpoint into another folder than the one that it is given.",
        "write into the folder that `save` is given, and nowhere else",
    ),
    "vacuous_one_process": (
        "The adapter keeps the process that saved and asks it to load.",
        "open nothing that outlives the run in `save` or `load`",
    ),
    "evaluation_not_finite": (
        "The evaluation divides by an empty set, or meets a batch that overflows.",
        "compute the metric of that evaluation alone, batch by batch",
    ),
    "evaluations_differ": (
        "The evaluation replays a graph of other weights or another mode, or reads weights that nobody averaged.",
        "print the numbers of both arms after one evaluation, and look at which tensors each reads",
    ),
    "vacuous_evaluations": (
        "An evaluation returns a number that was kept, or does not read the parameters as they are now.",
        "evaluate the parameters of the step at hand, each time",
    ),
    "vacuous_captured": (
        "What was to make the capture fail did not, so that the fallback never ran.",
        "plant something that cannot be captured, such as `.item()`, in this arm",
    ),
    "vacuous_one_batch": (
        "The arm with micro-batches computes the whole batch in one pass.",
        "see that the number of micro-batches is read from the arm's settings",
    ),
    "vacuous_seeds_alike": (
        "The seed does not reach data or initialization.",
        "draw batches and initial parameters from the seed that the run is given",
    ),
    "memory_outside_allocator": (
        "A library allocates by itself (communication, a workspace, another framework), or another process is there.",
        "find what allocates beside torch, or bound it in the claim",
    ),
    "device_unreadable": (
        "The driver answers for the device only in part: a container without its libraries, or a device being reset.",
        "see that `nvidia-smi` shows the device's compute capability in the same environment",
    ),
    "vacuous_reference": (
        "Inputs are zero, or the reference returns an output that it never filled.",
        "draw inputs that give a reference other than zero",
    ),
}
