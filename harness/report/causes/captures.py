"""What usually causes that a capture is not the demanded one, and what to do: by reason code."""

from __future__ import annotations

from typing import Final

TEXTS: Final[dict[str, tuple[str, str]]] = {
    "not_captured": (
        "Something in the step cannot be recorded: it waits for the device, allocates, or runs on another stream.",
        "mend the line that the message names",
    ),
    "capture_not_begun": (
        (
            "What asks for the capture does not reach the code that makes it: a step that overrides or copies another, "
            "a setting that is read elsewhere, a condition that is never met."
        ),
        "follow the setting from the contract's arm to where the capture begins",
    ),
    "empty_capture": (
        "The work ran on another stream than the captured one, or before the capture began.",
        "enqueue the step on the stream that is captured",
    ),
    "forbidden_node": (
        "A callback on the host, an allocation or a copy to the host is part of the step.",
        "allocate before the capture, and read results behind the replay",
    ),
    "sync_in_capture": (
        "The step reads a number from the device: `.item()`, a branch on a tensor, a print.",
        "keep the number on the device, or read it behind the step",
    ),
    "wrong_capture_count": (
        (
            "The key under which graphs are kept holds too much or too little: every step is captured, or "
            "shapes share one."
        ),
        "see what the key is made of, and which steps captured",
    ),
    "uncaptured_steps": (
        "A shape, a mode or a setting falls back to the uncaptured step.",
        "see in which steps the capture was not used, and what is special to them",
    ),
    "lost_step": (
        "The capture records the step and does not execute it, and no replay followed.",
        "replay once behind the capture, for the step that was captured",
    ),
    "extra_step": (
        "A warm-up, or a replay right behind the capture, trained too.",
        "put the state back behind warm-up and capture, so that each index trains once",
    ),
    "launches_differ": (
        "The adapter counts replays that did not launch a graph, or launches graphs that it does not count.",
        "count where the graph is launched",
    ),
    "launched_otherwise": (
        "Another graph was launched than the one whose nodes were counted, or it was changed since.",
        "record nodes from the graph that is launched, behind its last change",
    ),
    "work_outside_graphs": (
        "Part of the step stands outside the capture: the optimizer, the clip, or copies of many small tensors.",
        "move that work into the capture, or declare it in the claim where it is meant",
    ),
    "moved_buffer": (
        "A batch was rebound instead of copied, or gradients were set to None and allocated anew.",
        "copy into the static tensor with `copy_`, and clear gradients with `set_to_none=False`",
    ),
    "node_count": (
        "The step became another one: kernels were fused, split, left out or added.",
        "compare the nodes by kernel with those of the last run that held",
    ),
    "kernels_per_layer": (
        "Layers are missing from what was captured, or a library fused their kernels.",
        "see which layer's kernels are missing from the census",
    ),
    "clipped_tensors": (
        "The clip is given other parameters than those that train.",
        "give the clip every trainable tensor, and count them",
    ),
    "skipped_steps": (
        "Overflows under a loss scale that is too high, or a condition that leaves updates out.",
        "see at which steps updates were left out, and the loss scale there",
    ),
    "fallback_unsaid": (
        "The capture's exception is swallowed, and the record says that all is well.",
        "keep the exception's text in the capture record",
    ),
    "capture_attempts": (
        "A failed capture is tried again in each step, or is not tried at all.",
        "decide once for each shape, and keep what was decided",
    ),
    "captured_unasked": (
        "The setting `capture` of the arm is not read.",
        "capture only where the arm's settings ask for it",
    ),
}
