"""Every table of cases by kind of claim, and `any` for cases that belong to no single kind."""

from __future__ import annotations

from judge_cases import Case
from judge_cases_accumulation import ACCUMULATION_CASES
from judge_cases_between_steps import EVALUATION_CASES, RESUME_CASES
from judge_cases_bounds import BOUNDS
from judge_cases_capture import CAPTURE_CASES, MEMORY_CASES, SYNC_CASES
from judge_cases_end_state import ENDS
from judge_cases_gradients import GRADIENT_CASES
from judge_cases_kernel_match import MATCH_CASES
from judge_cases_kernels import PREWARM_CASES, PTX_CASES
from judge_cases_launched import LAUNCHED
from judge_cases_long_replay import LONG_CASES
from judge_cases_mechanisms import MECHANISMS
from judge_cases_noise import NOISE_CASES, TIMED_NOISE_CASES
from judge_cases_peak_memory import PEAK_CASES
from judge_cases_ranks import AGREE_CASES, AT_RANKS
from judge_cases_ranks import MATCH_CASES as RANK_MATCH_CASES
from judge_cases_ratios import RATIOS
from judge_cases_resumed_seeds import RESUMED_SEED_CASES
from judge_cases_roles import ROLES
from judge_cases_seeds import SEED_CASES
from judge_cases_settings import DIFFER_CASES, FALLBACK_CASES
from judge_cases_step_accuracy import ACCURACY_CASES
from judge_cases_steps import STEP_CASES
from judge_cases_throughput import OTHER_CASES, THROUGHPUT_CASES
from judge_cases_training import REPEATABILITY_CASES, TRAJECTORY_CASES

ONE_WRONG_THING: dict[str, list[Case]] = {
    "trajectory_match": TRAJECTORY_CASES + AT_RANKS + NOISE_CASES,
    "repeatability": REPEATABILITY_CASES,
    "gradient_match": GRADIENT_CASES,
    "capture": CAPTURE_CASES,
    "capture_fallback": FALLBACK_CASES,
    "runs_differ": DIFFER_CASES,
    "host_syncs": SYNC_CASES,
    "memory_steady": MEMORY_CASES,
    "ptx_target": PTX_CASES,
    "prewarm": PREWARM_CASES,
    "kernel_match": MATCH_CASES,
    "step_match": STEP_CASES,
    "step_accuracy": ACCURACY_CASES,
    "not_worse": SEED_CASES + RESUMED_SEED_CASES,
    "throughput_ratio": THROUGHPUT_CASES + TIMED_NOISE_CASES,
    "accumulation": ACCUMULATION_CASES,
    "peak_memory": PEAK_CASES,
    "long_replay": LONG_CASES,
    "resume": RESUME_CASES,
    "evaluation": EVALUATION_CASES,
    "ranks_agree": AGREE_CASES,
    "ranks_match": RANK_MATCH_CASES,
    "any": OTHER_CASES,
}
BESIDE = (BOUNDS, ROLES, MECHANISMS, ENDS, LAUNCHED, RATIOS)
EVERYTHING = {
    kind: [case for table in (ONE_WRONG_THING, *BESIDE) for case in table.get(kind, [])] for kind in ONE_WRONG_THING
}
TABLES = {kind: cases for kind, cases in EVERYTHING.items() if kind != "any"}
