"""What usually causes that arms, seeds, times or memory are not as demanded, and what to do: by reason code."""

from __future__ import annotations

from typing import Final

TEXTS: Final[dict[str, tuple[str, str]]] = {
    "differs": (
        (
            "The arms compute other numbers from equal batches. A captured step does where a warm-up is not undone, or "
            "where the host changes what the graph holds as it was: a count, a rate, a drawn number, a tensor that is "
            "bound anew."
        ),
        (
            "look at the first step that differs: the first replay shows what was there at the capture, the one after "
            "it what a replay does not change"
        ),
    ),
    "end_differs": (
        "Something that the recorded losses do not read differs: the last update, a moment, a buffer, a generator.",
        "look at how the named tensor is updated in both arms, in the last step above all",
    ),
    "ends_apart": (
        (
            "Something that the recorded losses do not read, or not yet, is trained otherwise: averaged weights, "
            "running statistics, a parameter that the optimizer does not hold, the last update."
        ),
        (
            "look at how the named tensor is updated in both arms; a share of 1 is a tensor that one arm leaves alone, "
            "one over the number of steps is an update that came late or never"
        ),
    ),
    "beyond_noise": (
        "The candidate trains something else than the baseline, or does it with more noise.",
        (
            "look at what the message names: a gradient of an early step, before noise grows, is nearest to the cause; "
            "an arm that does other arithmetic, as a compiled one does, is for `equality: within`"
        ),
    ),
    "exceeds_tolerance": (
        "The arms do other arithmetic, in another order or data type, by more than the bound allows for.",
        "compare the difference with the noise floor: many times of it is a mistake, about once is rounding",
    ),
    "frozen_changed": (
        "An optimizer was given parameters that are meant to stay, or a captured copy writes over them.",
        "give the optimizer the parameters that require a gradient, and no others",
    ),
    "clipped_norm_exceeded": (
        "The clip is missing from the step, or from the capture; or it scales by a norm of an earlier step.",
        "clip between backward and update, inside what is captured, with the norm of the same step",
    ),
    "ranks_differ": (
        (
            "A rank's gradients were not reduced in that step, or it drew, skipped or read something that the other "
            "ranks did not."
        ),
        "look at the step and the rank that the message names: what does this rank do there that no gradient holds",
    ),
    "rank_row_count": (
        "The inputs that a rank shows are a part of its share, or have another first dimension than the batch's rows.",
        "let every rank's inputs have `batch_size` / ranks rows along their first dimension, and show all that it read",
    ),
    "rank_batches_equal": (
        "The sampler is not told the rank, or every rank shuffles by a seed of its own.",
        "take the rows of a batch by `harness.system.ranks.share`, or give the sampler rank and world size",
    ),
    "ranks_end_apart": (
        "Gradients are summed and not averaged, clipped before they are reduced, or one update was left out.",
        (
            "see where the losses part: at step 1 it is the reduction, late it is rounding that training amplifies, "
            "which `in_turn` tells apart: one process that adds up the same parts"
        ),
    ),
    "collectives_outside_graph": (
        "A reduction is called behind the captured step: of the loss for a log, of a norm, or of the gradients.",
        "move it into the captured step, or behind the training",
    ),
    "collectives_missing_in_graph": (
        "The model was wrapped, or its reduction hooked, outside of what was captured.",
        "build DistributedDataParallel inside the capture's stream, and reduce in the captured step",
    ),
    "share_exceeded": (
        "The model was never sharded, or the optimizer was made before it was, of the whole parameters.",
        "shard first (`fully_shard`), then make the optimizer of the sharded parameters",
    ),
    "not_restored": (
        (
            "A checkpoint lacks something that training goes on from: moments, step counts, generators, the "
            "position in data."
        ),
        "save and load the named state too",
    ),
    "nothing_loaded": (
        "The load reads another file, matches no name, or loads into a copy.",
        "load strictly, so that names that do not fit are an error",
    ),
    "evaluation_changed_state": (
        (
            "An evaluation draws from training's generators, updates running statistics, leaves the model in another "
            "mode, or replays what was captured in training."
        ),
        (
            "evaluate in `eval()` and without gradients, with a generator of its own (and a graph of its own, where it "
            "is captured), and put back what the figures name"
        ),
    ),
    "losses_equal": (
        "The setting that the arms differ in does nothing: it is not read, or is overwritten.",
        "follow the setting from the contract's arm to where it is used",
    ),
    "batches_equal": (
        "The seed or the order of the data does not reach the loader.",
        "make the batch depend on the arm's seed",
    ),
    "start_equal": (
        "A checkpoint or a fixed seed gives every arm the same start.",
        "seed the initialization from the arm's seed",
    ),
    "micro_batch_count": (
        "The step divides its batch otherwise than the claim says.",
        "see how many micro-batches `accumulate` asks for, and how the batch is split",
    ),
    "micro_batches_repeat": (
        "The loop reads the first micro-batch in each pass: its index is not counted on.",
        "give each pass of a step the next part of the batch",
    ),
    "update_count": (
        "The optimizer steps in each pass, or only in some steps.",
        "step the optimizer once, behind the last micro-batch",
    ),
    "differs_from_one_batch": (
        (
            "Losses are summed and not divided, or are divided by micro-batches of unequal numbers of tokens; "
            "or gradients are cleared between the passes."
        ),
        "weight each micro-batch by its share of the tokens, and clear gradients once a step",
    ),
    "worse": (
        "The candidate learns less: its arithmetic, its data or its settings are worse by more than chance.",
        "compare the seeds one by one: a difference at all of them is the method's, at one of them an accident's",
    ),
    "sync_count": (
        "The step reads from the device where it should not: `.item()`, `.cpu()`, `nonzero`, a branch on a tensor.",
        "look at the lines that the message names, and keep those numbers on the device",
    ),
    "control_sync_count": (
        "The control arm waits more or less often than it was built to.",
        "count the reads in the control's step, and correct the claim or the arm",
    ),
    "memory_grows": (
        (
            "Something is kept from step to step: losses with their graphs, captured graphs by a key that never "
            "repeats, logs."
        ),
        "see at which step the growth begins, and what is appended there",
    ),
    "peak_memory": (
        "Activations, a copy for the capture, or a workspace are larger than the bound expects.",
        "see in which phase the peak was reached",
    ),
    "peak_ratio": (
        "The candidate keeps a second copy: static buffers beside the originals, or a private pool for each graph.",
        "let graphs share one pool, and free what only the warm-up needed",
    ),
    "too_slow": (
        (
            "What the candidate saves is no large part of a step here: the step is bound by the device, or the "
            "host is fast."
        ),
        "see how long the device works in a step of the baseline: what remains is all that can be saved",
    ),
    "slows_down": (
        "Work that grows with the number of steps: logs, caches, fragments of memory, a clock that falls.",
        "compare the step times with memory and clock in the same plot",
    ),
}
