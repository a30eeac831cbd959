"""What usually causes that nothing was decided, and what to do: of errors, of what was measured and left open, and of
what could not be run. Cause and remedy by reason code.
"""

from __future__ import annotations

from typing import Final

TEXTS: Final[dict[str, tuple[str, str]]] = {
    # --- harness, worker or system broke
    "worker_signal": (
        "The process was killed from outside, most often for memory, or crashed in native code.",
        "see the kernel's log for a process killed for memory; else the last line of the stack below `What broke`",
    ),
    "worker_exit_code": (
        "The system, or a library that it uses, ended the process by itself.",
        "see the output of the worker, kept with its evidence, for what was printed last",
    ),
    "worker_wall_limit": (
        "The work takes longer than the limit allows for, on this machine.",
        "raise it with `--wall-limit`, or give the workload fewer steps",
    ),
    "worker_heartbeat": (
        "A step hangs: a lock, a collective without its partners, a data loader that waits, or an endless loop.",
        "look at the line at which it stood",
    ),
    "worker_incomplete": (
        "Something ended the process with exit code 0 before its work was done: `sys.exit`, `os._exit`.",
        "take the exit out of the system's code",
    ),
    "worker_garbage": (
        "The system wrote into the worker's own files or sockets, or the disk was full.",
        "see that the disk has room, and that the system writes into folders and sockets of its own",
    ),
    "worker_output_limit": (
        "The system prints in each step, or a library warns without end.",
        "print less: a line a step is enough to reach the limit in a long run",
    ),
    "worker_exception": (
        "The system raised an exception; the message says which, and where it knows that.",
        "mend what raised it; the whole stack stands in the report below `What broke`",
    ),
    "system_not_described": (
        "The module is not where Python looks for it, fails when it is imported, or `describe()` raises.",
        "import it alone, in the folder and environment of the run",
    ),
    "evidence_missing": (
        "A file is missing from the run directory, or the adapter did not report what its capabilities promise.",
        "see whether the directory is whole; if it is, report in the adapter what the message names",
    ),
    "evidence_inconsistent": (
        "The adapter counts or names otherwise than the harness saw, or evidence was edited.",
        "see whether the directory is as it was sealed; if it is, correct what the adapter reports",
    ),
    "judge_error": (
        "A judge met evidence that it was not written for.",
        "report it with the run directory: it is a defect of the harness",
    ),
    # --- measured, not decided
    "end_state_unrecorded": (
        "The run is of an older version of the harness, or the adapter exposes no state.",
        "run it again with this version",
    ),
    "updates_uncounted": (
        "The optimizer keeps no `step` in its state.",
        "let the adapter count its updates",
    ),
    "undecided_difference": (
        "The seeds scatter by about as much as the margin.",
        "repeat it with more seeds, or with a margin that the question needs",
    ),
    "too_few_seeds": (
        "The contract lists fewer seeds than its confidence needs.",
        "list more seeds in the claim",
    ),
    "peak_unknown": (
        "The system calls `reset_peak_memory_stats` while it trains.",
        "take that call out of the step",
    ),
    "device_memory_unseen": (
        "Other processes use the device, or its driver does not tell what is in use.",
        "repeat it on a device that nothing else uses",
    ),
    "baseline_idle": (
        "The baseline sleeps, waits for data or for a lock: a speed-up over it would mean nothing.",
        "take the wait out of the baseline's step",
    ),
    "host_waited": (
        "The step is bound by the device, so that the time to enqueue is not seen by itself.",
        "judge the time of the whole step, or take a workload of smaller kernels",
    ),
    "peer_missing": (
        "The peer does not implement the operation at this shape or data type.",
        "give the system a peer for it, or leave the case out of the claim",
    ),
    "undecided_ratio": (
        "The speed lies near the demand, or the processes scatter too widely.",
        "measure it where less disturbs it: more processes alone would not decide it here",
    ),
    "candidate_stalls": (
        "Now and then the candidate recompiles, allocates or collects garbage; or another program took the machine.",
        "see in the blocks when it is slow, and take that work out of the step; or repeat it on an idle machine",
    ),
    "too_few_processes": (
        "The contract asks for fewer processes than its confidence needs.",
        "raise `processes` in the claim",
    ),
    "measurements_overlap": (
        "Two measurements ran at once on one device.",
        "repeat them one after the other",
    ),
    "limits_exceeded": (
        "Other work on the machine, a clock that fell, or heat.",
        "repeat it on an otherwise idle machine whose GPU holds its clock",
    ),
    "telemetry_missing": (
        "The driver's library (NVML) is not there, or not allowed to answer in this container.",
        "repeat it where `nvidia-smi` shows clocks and throttle reasons",
    ),
    "undecided_slowdown": (
        "Step times scatter by more than the bound on their growth.",
        "repeat it on a quieter machine, or with more steps",
    ),
    "candidate_not_captured": (
        "The capture failed, so that no captured step was there to be judged.",
        "mend the capture first",
    ),
    "host_value_unexplained": (
        "The step counts in Python, and a replay executes no Python: a schedule, a log or a branch stays as it was.",
        "keep the number in a tensor, or say under `host_values` of the contract why no replay need change it",
    ),
    "other_random_numbers": (
        (
            "A library runs another kernel where it is captured, or torch.compile draws by one of its own: what they "
            "drop or mask is other elements, and both are right."
        ),
        (
            "compare with dropout of 0 in both arms; set `torch._inductor.config.fallback_random` before your own "
            "torch.compile; or write a claim of `not_worse` over seeds, which is weaker: a small fault is no worse, too"
        ),
    ),
    "baseline_not_repeatable": (
        (
            "An operation of the plain step adds in no fixed order: a convolution's backward, a scatter, an attention. "
            "Or the plain step draws a seed of its process: of entropy, `hash()`, the time."
        ),
        (
            "seed what the step draws itself; compare arms with `deterministic: true` in bits, or within the "
            "baseline's own noise (`equality: noise`)"
        ),
    ),
    "optimization_off": (
        "The optimization was asked for and fell back: a missing package, an unknown name, a flag that nothing reads.",
        "look where the option is read; where the gain is speed or memory alone, claim that, and drop `switched_on`",
    ),
    "other_precision": (
        "An optimizer whose moments lie in fewer bits takes other steps, which no bound on rounding covers.",
        "claim `not_worse` over seeds, which compares how well both arms train",
    ),
    "clip_unseen": (
        "The optimized step lost its clip, or was rewritten with one that the plain step never had.",
        "lower the bound in both arms until gradients reach it, and compare again",
    ),
    "no_noise": (
        "The arms differ by a rounding, and the baseline has no noise that it could be.",
        "claim `equality: bitwise`, or `within` a bound for arms that do other arithmetic",
    ),
    "noise_hides": (
        "The baseline's noise grows until its runs end nowhere near each other: many steps, or a high learning rate.",
        (
            "compare fewer steps, use deterministic algorithms in both arms, or name a `training_effect` control, "
            "whose losses may lie further away than the noise"
        ),
    ),
    "noise_above_tolerance": (
        "The baseline is not repeatable: atomic additions, a generator that is not seeded, threads that race.",
        "make the baseline repeatable first, or widen the tolerance above its noise",
    ),
    "rank_share_unseen": (
        "Ranks pack their rows into fewer, or hold them along another dimension; or each reads a part of its share.",
        "let `inputs` show what a rank reads with one row of the batch each along the first dimension",
    ),
    "gradients_undecided": (
        "One tensor's gradient is a million times the others': it diverges, or its loss is scaled.",
        "look at the tensor with the largest gradient; compare a step in which the others are of its size",
    ),
    "ends_undecided": (
        "Training enlarges roundings until they are all of its way: a learning rate that is too high, or many steps.",
        "compare fewer steps, or train at a lower rate; without `ends`, say in `why` what the losses do not show",
    ),
    "ends_uncompared": (
        "The candidate keeps an average or other state in another layout, under another name, or not at all.",
        "name the tensors alike in both arms' `state`, those of a flat one by its views",
    ),
    "replays_unwatched": (
        "The evidence was recorded before replays were watched on the device.",
        "run it once more: today's harness watches them",
    ),
    "steps_unwatched": (
        "The detector was switched off for some steps, or the arm cannot be executed under it.",
        "see in which steps the detector ran, and let it run in all",
    ),
    "clock_contradicted": (
        "The host's clock was set, the machine was suspended, or the system replaced the clock.",
        "repeat it on a machine whose clock nobody sets meanwhile",
    ),
    "launches_unobserved": (
        "The profiler cannot be used on this machine, or the step only says that it replays a capture.",
        "repeat it where the profiler sees graph launches; replay by `torch.cuda.CUDAGraph`, or `TracedStep` on a CPU",
    ),
    "counter_blind": (
        "Another subscriber to CUPTI took the callbacks away from the counter.",
        "repeat it where nothing else subscribes to CUPTI, a profiler of the system's own included",
    ),
    "profiler_blind": (
        "Another profiler took the activity records: the planted sync is not among them.",
        "take other users of CUPTI away, the system's own profiler among them, and repeat it",
    ),
    "device_work_unobserved": (
        "The process that is profiled died or was left out.",
        "run the profiled process of the timing, its first, too",
    ),
    "graphs_differ": (
        "What is captured depends on chance or on the process: a hash, an order of names, an algorithm chosen by time.",
        "make the captured step the same in every process",
    ),
    "unknown_node_type": (
        "The graph holds a kind of node that CUDA has added since.",
        "take that operation out of the capture, or update the harness",
    ),
    "detectors_disagree": (
        "A library waits in a way that only one of the detectors sees.",
        "look at the places that the larger reading names",
    ),
    "one_detector": (
        "The other detectors cannot be used with this system or on this machine.",
        "run it where the profiler works, or where the step can be traced",
    ),
    "operators_unseen": (
        "An operator of one's own is not registered for fake tensors.",
        "run it on a machine with a CUDA device, or register one: `my_operator.register_fake`",
    ),
    "ran_as_written": (
        (
            "The step calls torch.compile. Without a GPU a step is recorded as operators, and compiled code has none. "
            "It rounds differently, and it draws other random numbers unless it is compiled with `fallback_random`."
        ),
        (
            "run it on a machine with a CUDA device, whose graphs hold compiled code; or set TORCHDYNAMO_DISABLE=1, so "
            "that every arm runs the step as it is written"
        ),
    ),
    "driver_version_unknown": (
        "The driver could not be asked, or is newer than the table of PTX versions.",
        "run it where the driver answers, or update the harness",
    ),
    "missing_cases": (
        "Some points of the grid failed or were left out.",
        "run every operation, data type, shape and magnitude that the claim lists",
    ),
}

# Units that could not be run: their message says why, so they have what would decide them alone.
REMEDIES_OF_NOT_RUN: Final[dict[str, str]] = {
    "one_rank_only": "judge it of an arm with one rank, and the arm with several by `ranks_match`",
    "needs_cuda": "run it on a machine with a CUDA device",
    "needs_gpu": "run it on a machine with the GPU that its workload names",
    "needs_memory": "run it on a device with more free memory",
    "not_available": "provide what the system says is missing",
    "not_in_contract": "judge it by the contract that it was run under",
    "evidence_of_another_contract": "run the contract as it stands, or judge the run by its own contract",
    "not_planned": "plan the unit without narrowing, or run its shard",
    "capability_missing": (
        "give the system's adapter the capability that is named, or take the claim out of the contract where the step "
        "has no such thing by design"
    ),
    "module_missing": "install the module that is named",
    "mechanism_missing": "run it where the claim's mechanism exists",
    "judge_missing": "wait for a judge of this claim kind",
}
