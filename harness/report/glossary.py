"""Words that a reviewer need not know, each explained in one sentence: for pages, and for the glossary of the docs.

A term is written as figures are shown (`missed bias`, of the figure `missed_bias`), so that it is found in their names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

GLOSSARY: Mapping[str, str] = MappingProxyType(
    {
        # what a page is made of
        "arm": "One way of running the same training, such as captured or plain.",
        "baseline": "The arm that is compared with, usually the plain, unoptimized training.",
        "candidate": "The arm under test, usually the optimized training.",
        "control": "An arm that shows what the check would see if the claim were wrong, such as a training that learns "
        "nothing.",
        "unit": "One claim of one contract on one workload; it has one verdict.",
        "workload": "A model with its batch size, sequence length and number of steps.",
        "drill": "A run with a fault planted on purpose, which the claim must find broken for the fault to be killed.",
        "faults killed": "How many of the faults planted for a claim its check found, of those that were planted in "
        "the last drill of this contract.",
        "denominator": "How much a verdict rests on, such as steps compared; a verdict that rests on none never holds.",
        "waived": "Violated or undecided, and signed for by somebody until a date.",
        # ranks
        "rank": "One of several processes that train one model together, each on its share of every batch; a number "
        "from 0.",
        "in turn": "By one process, which takes the shares of all ranks one after the other and adds their gradients.",
        "replica": "The model as one rank holds it; under data-parallel training all are equal in every bit.",
        "collective": "An operation in which all ranks take part, such as adding up their gradients.",
        "largest share": "The largest part of all parameters' elements, or of the optimizer's, that one rank holds.",
        "in parts": "Divided among ranks, each of which holds what no other one does, and gathered to be compared.",
        "collectives in graph": "How many collectives the recorded graph holds, which a replay executes by itself.",
        "host collective": "A collective that the host begins in a step, outside of any recorded graph.",
        # captures
        "shapes": "How many shapes of batches the run read; a capture for each of them may be allowed.",
        # series
        "max abs difference": "The largest absolute difference between the two arms at any place that was compared.",
        "max relative difference": "The largest difference between the two arms, divided by the baseline's own size "
        "there.",
        "relative difference": "A difference divided by the size of what it is a difference from.",
        "first differing": "The first place at which the two arms are not equal in every bit.",
        "first unequal": "The first place at which the arms did not start alike or did not read the same batch, so "
        "that comparing them says nothing.",
        "non finite": "NaN or infinity: a training that shows either has gone wrong, whatever the other arm shows.",
        "noise floor": "The largest difference between two runs of the same baseline; a smaller one between the arms "
        "is no news.",
        "beyond noise": "How far the runs of two arms lie apart, over what equal arms' own noise makes of it: above 1 "
        "the arms are unequal.",
        "hidden": "The smallest difference that the baseline's own noise would have let show.",
        "tolerance": "The largest difference that the contract allows.",
        "upstream tolerance": "The bound that the project which first made the claim demands; the contract may demand "
        "more.",
        "watched": "Which kinds of state were compared at the start and the end, such as parameters and optimizer.",
        "state": "All that a training keeps between steps: parameters, buffers, optimizer state, random generators.",
        "training effect": "How far the mean loss of the last steps lies below that of a control which learns nothing.",
        "moved": "By how much of its size a parameter changed from start to end: the median over all that train.",
        "standard error": "How far chance alone moves a mean; a training that learns lowers its loss by several.",
        "below any control loss": "How far the loss ends below the smallest loss that the control, which learns "
        "nothing, ever showed.",
        "follows control": "Which share of the control's change from batch to batch the loss shares: a loss that knows "
        "nothing of its batches shares none.",
        "skipped together": "Steps in which neither arm updated its parameters, as when a loss scale overflows.",
        "other precision": "The types of the candidate's optimizer state, of fewer bits than its parameters.",
        "clip without effect": "The arm that bounds its gradients, and the operator: no gradient reached the bound.",
        "other random numbers": "The first operator by which one arm draws random numbers and the other arm does not.",
        "clip": "The limit on the gradient's norm; it is active in a step where it made a gradient smaller.",
        "clipped norm": "The norm of a group of gradients after the clip, which must keep the threshold.",
        "clipped tensor": "A tensor whose gradient was clipped inside the recorded graph.",
        "exceeding": "Beyond the bound that the contract demands.",
        "end distance": "How otherwise two arms moved a tensor from start to end, over the baseline's movement.",
        "rounding": "What arithmetic in another order changes, without a mistake anywhere.",
        "evaluated": "What evaluations between the steps returned, beside those of the plain arm.",
        "exceeded": "Which of the contract's bounds was not kept.",
        # time
        "mean ratio": "How many times as fast the candidate is, as the trimmed mean over the processes.",
        "generous": "Read in the candidate's favour, where disturbed blocks allow two readings.",
        "lower bound": "The smallest ratio that the measurement allows at its confidence; it must reach the demand.",
        "upper bound": "The largest ratio that the measurement allows at its confidence, read in the candidate's "
        "favour.",
        "margin": "By how much a measurement must clear the demand, for noise and for bias that it could have missed.",
        "missed bias": "The largest error common to all processes that this measurement could not have noticed, from "
        "timing each arm against itself.",
        "sustained": "Over all timed blocks of the candidate, those in which it stalled included.",
        "self ratio": "An arm timed against itself, which would be exactly 1 without noise.",
        "log ratio deviation": "How much the ratio varies from process to process: the standard deviation of its "
        "logarithm, so that 0.01 is about 1 %.",
        "confidence": "How rarely such an interval misses the truth: at 99 %, once in a hundred times.",
        "process": "One program start that times both arms and gives one ratio.",
        "block": "A number of steps that are timed together.",
        "round": "One turn of blocks of both arms, one after the other.",
        "disturbed": "Something else worked on the same processor core while it was timed.",
        "enqueue": "The host's work to hand a step to the GPU, without waiting for it.",
        "idle share": "The share of the baseline's time in which neither the host nor the GPU worked: a baseline that "
        "is being slowed.",
        "foreign gpu": "Of other people's work on the same GPU during the timing.",
        "throttled share": "The share of samples in which the GPU's driver slowed it, for heat say.",
        "power capped share": "The share of samples in which the GPU ran at its power limit.",
        "sm clock": "The clock of the GPU's streaming multiprocessors, in MHz.",
        "clock advantage": "By which share the GPU's clock was higher while the faster arm was timed.",
        "host load": "How busy the processor cores were, 1 for all of them.",
        "telemetry": "What the GPU said of its clock, power and temperature during the timing.",
        "slowdown": "By which share a step took longer in the last quarter of a long run than in the first.",
        # captured work
        "capture": "Recording a step's GPU work once as a graph, which is then replayed.",
        "replay": "Running a recorded graph again in place of the step's code.",
        "reported": "Of an arm that is shown and not judged.",
        "uncaptured": "Run from the step's code and not from a recorded graph.",
        "unasked": "Made although the arm's settings ask for none.",
        "warmup": "Steps that were run before the capture, to get ready for it.",
        "node": "One operation in a recorded graph, such as a kernel or a copy.",
        "launch": "One start of a graph or kernel on the GPU, as the harness itself saw it.",
        "outside share": "The share of a captured step's GPU time that is spent outside its graphs.",
        "outside operations": "Operations that a captured step issues outside its graphs.",
        "skipped steps": "Steps whose update was left out because loss or gradient was not finite.",
        "buffer": "Memory that a graph reads or writes, which must keep its address.",
        "host value": "A Python number that each step changes and reads, and that no replay changes.",
        "unread apart": "Tensors that no step reads, logs say, in which two arms ended apart.",
        "host sync": "A moment at which the host waits for the GPU.",
        "sync": "A moment at which the host waits for the GPU.",
        "detector": "One of two independent ways in which host syncs are counted.",
        # kernels
        "kernel": "A program that runs on the GPU.",
        "ptx": "The instructions for a GPU that a kernel is compiled to.",
        "target": "The GPU architecture that a kernel is compiled for, such as sm_90.",
        "sm": "Followed by a number, a GPU architecture; an H200 is sm_90.",
        "compute": "Followed by a number, a family of GPU architectures.",
        "jit": "Compiling or loading a kernel at the moment it is first needed.",
        "prewarm": "Compiling all kernels before the weights fill the GPU's memory.",
        "key": "The name under which a compiled kernel is kept.",
        "handle": "What a GPU library needs open before it can be called.",
        "fill": "Taking the rest of the GPU's memory on purpose, so that whatever still needs some fails.",
        "naive": "A short, obviously right version of a kernel, with which it is compared.",
        "fp64": "A reference computed in double precision.",
        "peer": "Another project's implementation of the same computation.",
        "unmet demand": "What the compiled kernel does not have as the contract demands.",
        # steps, memory, seeds, checkpoints
        "error over bound": "An error divided by what the contract allows: beyond 1 it is too large.",
        "exp avg": "The optimizer's running mean of the gradient, Adam's first moment.",
        "exp avg sq": "The optimizer's running mean of the squared gradient, Adam's second moment.",
        "gradient ratio": "The candidate's gradient error divided by that of another implementation in the same "
        "precision.",
        "loss ratio": "The candidate's mean loss error divided by that of another implementation in the same "
        "precision.",
        "micro batch": "A part of a batch; a step may take its batch in several and add up their gradients.",
        "update": "One change of the parameters by the optimizer.",
        "allocated": "Memory that tensors take.",
        "reserved": "Memory that torch's allocator took from the GPU to hold tensors.",
        "peak": "The most memory that was held at one time.",
        "outside peak": "The most memory that was taken beside torch's allocator, by the GPU's driver say.",
        "outside demanded": "The most memory beside torch's allocator that the contract allows.",
        "resets": "How often the training itself set its count of peak memory back, which hides a peak.",
        "growth": "How much more memory was held at the end than after the first steps.",
        "worse by": "How far the candidate's mean lies on the worse side of the baseline's, over all seeds.",
        "excess": "By how much the candidate is worse than allowed; below 0 it is within the margin.",
        "seed": "A number from which random choices follow; each seed is one training of either arm.",
        "to decide": "How many would probably settle an open verdict.",
        "evaluation": "Running the model on held-out data between two training steps, without training on it.",
        "checkpoint": "The state that a training saves so that another process can go on with it.",
        "restored": "Equal, after loading a checkpoint, to what was saved.",
    }
)


def terms_in(texts: Iterable[str]) -> dict[str, str]:
    """The terms that occur in any of these texts, with their explanations, in the glossary's order.

    A term counts in the plural too; one within a longer one that stands there (`sync` in `host sync`) does not.
    """
    joined = "\n".join(texts).replace("_", " ").casefold()
    found = {}
    for term in sorted(GLOSSARY, key=len, reverse=True):
        joined, number = re.subn(rf"(?<![a-z0-9]){re.escape(term)}(?:s|es)?(?![a-z])", "\0", joined)
        if number:
            found[term] = GLOSSARY[term]
    return {term: found[term] for term in GLOSSARY if term in found}
