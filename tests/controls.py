"""Negative controls: every check, with the test that must fail when the check is made content with everything.

A checker that was never seen to catch anything proves nothing. `python -m tests.run_controls` (`make controls`) takes
each entry in turn, puts `content` in the place of the function named by `check`, runs `test` alone and expects it to
fail; and it expects all of these tests to pass undisturbed.

To add one: write a test that plants something wrong and is marked ``control``, and add a line to `CONTROLS`. `check` is
``module:attribute`` or ``module:Class.attribute``, as the code under test looks it up when it calls it (where a module
says ``from x import f``, that is the module itself, not ``x``). The replacement holds only in the test's own process.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from chaos.scoring.verdict import Judged
from injectors.contract import Evidence

VARIABLE = "CHAOS_DISABLE_CONTROL"  # names the control that is disabled in this process


class Control(NamedTuple):
    """One check: what is replaced, by what, and the test that must notice."""

    name: str
    check: str
    content: Callable[..., Any]
    test: str


def always(value: Any) -> Callable[..., Any]:
    """A check that gives the same answer to everything."""
    return lambda *_, **__: value


def passed(*_: Any, **__: Any) -> Any:
    """A judge who passes everything."""
    return Judged("pass", "all is well")


def witnessed(*_: Any, **__: Any) -> Any:
    """A witness who has seen whatever should have happened."""
    return Evidence(True, "it is in effect")


def into_the_state_itself(_recovery: Any, replica: Any, group: Any, source: int, _step: int) -> None:
    """Receives a peer's state where the replica's own is."""
    group.broadcast(replica.arena.state, root=source)


def stands_by_with_what_it_holds(rank: Any, _generation: Any) -> None:
    """A rank that was replaced, and is ready for a seat without having been fenced."""
    rank._control.tell(standing_by=True)


_RTO = "tests/scoring/test_rto.py::"
_BASELINE = "tests/scoring/test_baseline.py::"
_MEMBERSHIP = "tests/scoring/test_membership.py::"
_RECOVERY = "tests/scoring/test_recovery.py::"
_CONSISTENCY = "tests/scoring/test_consistency.py::"
_VERDICT = "tests/scoring/test_verdict.py::"
_CARD = "tests/scoring/test_scorecard.py::"
_DAMAGED = "tests/scoring/test_damaged_journals.py::"
_FABRIC = "tests/injectors/test_fabric.py::"
_SLURM = "tests/injectors/test_slurm.py::"
_PCIE = "tests/injectors/test_pcie.py::"
_NAMESPACES = "tests/injectors/test_namespaces.py::"
_PROCESS = "tests/injectors/test_process.py::"
_POWER = "tests/injectors/test_power.py::"
_PEER = "tests/workload/test_peer_recovery.py::"
_RANK = "tests/workload/test_rank.py::"
_SUPERVISOR = "tests/workload/test_supervisor.py::"
_PATHS = "tests/workload/test_paths.py::"
_PROGRESS = "tests/workload/test_progress.py::"
_ADOPTION = "tests/workload/test_adoption.py::"
_LEDGER = "tests/engine/test_ledger.py::"
_CLEANUP = "tests/report/test_cleanup.py::"

_RECORDS = "tests/agent/test_records.py::"
_LOCKS = "tests/agent/test_locks.py::"
_STORM = "tests/storm/test_storm.py::"

CONTROLS = [
    # Recovery: back at the mark, and staying there.
    Control(
        "rto: ten steps reach the mark",
        "chaos.scoring.rto:meets_mark",
        always(True),
        _RTO + "test_a_planted_stall_is_measured_to_one_step",
    ),
    Control(
        "rto: no second stall in the hold period",
        "chaos.scoring.rto:relapses",
        always(False),
        _RTO + "test_a_job_that_stalls_again_has_recovered_only_after_the_second_stall",
    ),
    Control(
        "rto: a dip at a later fault's effect is that fault's doing",
        "chaos.scoring.rto:relapses",
        always(False),
        _RECOVERY + "test_a_job_that_goes_back_to_a_flapping_path_each_time_fails",
    ),
    Control(
        "rto: a stall is seen while it lasts",
        "chaos.scoring.rto:_Observed.low_in_hold",
        always([]),
        _RTO + "test_a_second_stall_that_never_ends_is_seen_while_it_lasts",
    ),
    Control(
        "rto: no lasting slow-down",
        "chaos.scoring.rto:stays_slow",
        always(False),
        _RTO + "test_a_lasting_slow_down_is_not_excused_by_hiccups_in_the_baseline",
    ),
    Control(
        "rto: the verdict of a slow-down of 30 %",
        "chaos.scoring.recovery:judge",
        passed,
        _RECOVERY + "test_a_slow_down_of_thirty_percent_that_never_ends_fails_without_a_figure",
    ),
    Control(
        "rto: no dip is excused while the fault is in effect",
        "chaos.scoring.recovery:unattributed",
        always(None),
        _RECOVERY + "test_a_late_dip_while_the_fault_is_in_effect_is_not_excused",
    ),
    Control(
        "baseline: steady enough for the mark",
        "chaos.scoring.baseline:unusable",
        always(None),
        _BASELINE + "test_a_baseline_as_noisy_as_the_mark_is_refused_and_says_so",
    ),
    Control(
        "baseline: no figure is judged against noise",
        "chaos.scoring.recovery:unusable",
        always(None),
        _RECOVERY + "test_no_figure_is_judged_against_a_baseline_as_noisy_as_the_mark",
    ),
    Control(
        "membership: a woken rank makes no progress",
        "chaos.scoring.membership:is_current",
        always(True),
        _MEMBERSHIP + "test_a_woken_rank_makes_no_progress_while_the_others_regroup",
    ),
    Control(
        "membership: a woken rank is not compared",
        "chaos.scoring.membership:is_current",
        always(True),
        _CONSISTENCY + "test_a_woken_rank_that_is_no_longer_a_member_is_not_compared",
    ),
    # Consistency: equal replicas, exactly restored.
    Control(
        "consistency: one bit in one rank's hash",
        "chaos.scoring.consistency:agreeing",
        len,
        _CONSISTENCY + "test_one_flipped_bit_in_one_hash_of_one_rank_is_found",
    ),
    Control(
        "consistency: the verdict of a flipped bit",
        "chaos.scoring.scorecard:_judge_consistency",
        passed,
        _VERDICT + "test_a_flipped_bit_in_one_hash_fails_the_run",
    ),
    Control(
        "consistency: something was compared",
        "chaos.scoring.scorecard:_judge_consistency",
        passed,
        _VERDICT + "test_where_nothing_could_be_compared_nothing_is_passed",
    ),
    Control(
        "consistency: each member was compared after the recovery",
        "chaos.scoring.scorecard:_judge_consistency",
        passed,
        _VERDICT + "test_a_member_without_a_comparison_after_the_recovery_is_not_passed",
    ),
    Control(
        "consistency: replayed steps give the same parameters",
        "chaos.scoring.consistency:_replays",
        always((0, 0, None)),
        _CARD + "test_a_state_that_was_not_restored_exactly_is_found_and_fails",
    ),
    Control(
        "consistency: steps from before a smaller world are held to it too",
        "chaos.scoring.consistency:_comparable",
        always(False),
        _CONSISTENCY + "test_what_goes_back_before_a_smaller_world_began_is",
    ),
    Control(
        "findings: a job that became smaller",
        "chaos.scoring.recovery:shrunk",
        always([]),
        _CARD + "test_a_job_that_shrinks_without_a_fault_is_told_as_well",
    ),
    # The run: witnessed, undone, held.
    Control(
        "verdict: no fault counts until it is witnessed",
        "chaos.scoring.verdict:unwitnessed",
        always(None),
        _VERDICT + "test_a_fault_that_silently_did_nothing_is_never_a_pass",
    ),
    Control(
        "verdict: nothing is left of a fault",
        "chaos.scoring.verdict:_left",
        always(None),
        _VERDICT + "test_what_is_left_of_a_fault_is_an_error_and_is_named",
    ),
    Control(
        "verdict: a run that was stopped is not scored",
        "chaos.scoring.verdict:_aborted",
        always(None),
        _VERDICT + "test_a_run_that_was_stopped_is_aborted_and_says_by_what",
    ),
    Control(
        "verdict: another version's journal is not scored",
        "chaos.scoring.verdict:_foreign",
        always(None),
        _DAMAGED + "test_a_journal_of_another_schema_is_never_a_pass",
    ),
    Control(
        "verdict: the steady state holds afterwards",
        "chaos.scoring.verdict:steady_state",
        passed,
        _VERDICT + "test_a_hypothesis_that_does_not_hold_afterwards_fails",
    ),
    Control(
        "verdict: the steady state holds during the fault",
        "chaos.scoring.verdict:steady_state",
        passed,
        _VERDICT + "test_a_hypothesis_that_does_not_hold_during_the_fault_fails",
    ),
    Control(
        "verdict: the whole steady state was checked afterwards",
        "chaos.scoring.verdict:_held_afterwards",
        always([]),
        _VERDICT + "test_a_hypothesis_of_which_only_a_part_was_checked_afterwards_is_inconclusive",
    ),
    Control(
        "verdict: one failure outweighs all passes",
        "chaos.scoring.verdict:overall",
        passed,
        _VERDICT + "test_what_counts_before_what",
    ),
    Control(
        "verdict: chance drew a fault",
        "chaos.scoring.verdict:overall",
        passed,
        _VERDICT + "test_a_run_in_which_chance_drew_no_fault_is_inconclusive",
    ),
    # Injectors: witnessed, and gone.
    Control(
        "fabric.blackhole: a drop that was never started",
        "injectors.fabric:Blackhole.witness",
        witnessed,
        _FABRIC + "test_a_drop_that_was_never_started_is_not_witnessed",
    ),
    Control(
        "fabric.blackhole: a drop of one way alone",
        "injectors.fabric:Blackhole.witness",
        witnessed,
        _FABRIC + "test_a_drop_of_one_way_alone_is_not_witnessed_as_both",
    ),
    Control(
        "fabric.blackhole: an undo that does nothing",
        "injectors.fabric:Blackhole.residue",
        always([]),
        _FABRIC + "test_an_undo_that_does_nothing_is_found_out",
    ),
    Control(
        "pcie.throttle: a link that was never slowed",
        "injectors.pcie:Throttle.witness",
        witnessed,
        _PCIE + "test_a_link_that_was_never_slowed_is_not_witnessed",
    ),
    Control(
        "pcie.throttle: one direction alone",
        "injectors.pcie:Throttle.witness",
        witnessed,
        _PCIE + "test_one_direction_alone_is_not_witnessed",
    ),
    Control(
        "pcie.throttle: an undo that does nothing",
        "injectors.pcie:Throttle.residue",
        always([]),
        _PCIE + "test_an_undo_that_does_nothing_is_found_out",
    ),
    Control(
        "pcie.throttle: a foreign qdisc with our handle",
        "injectors._qdisc:Qdisc.marked",
        always(True),
        _PCIE + "test_a_foreign_qdisc_with_our_handle_is_neither_taken_for_ours_nor_deleted",
    ),
    Control(
        "node.drain: a node that was never drained",
        "injectors.slurm:Drain.witness",
        witnessed,
        _SLURM + "test_a_drained_node_gets_no_job_and_is_idle_again_after_the_undo",
    ),
    Control(
        "node.drain: a node that stays drained",
        "injectors.slurm:Drain.residue",
        always([]),
        _SLURM + "test_a_drained_node_gets_no_job_and_is_idle_again_after_the_undo",
    ),
    Control(
        "namespaces: one is gone only when every place was searched",
        "injectors.namespaces:find",
        always(None),
        _NAMESPACES + "test_what_cannot_be_looked_into_is_never_proof_that_it_has_gone",
    ),
    Control(
        "process.signal: an agent never hits what it has started",
        "injectors._processes:child_of_ours",
        always(False),
        _PROCESS + "test_what_the_agent_has_started_is_never_hit",
    ),
    Control(
        "process.signal: a signal that was not sent",
        "injectors.process:Signal.witness",
        witnessed,
        _PROCESS + "test_a_signal_that_was_not_sent_is_not_witnessed",
    ),
    Control(
        "process.signal: a continuation that was not sent",
        "injectors.process:Signal.residue",
        always([]),
        _PROCESS + "test_a_continuation_that_was_not_sent_is_found_out",
    ),
    Control(
        "process.signal: an agent never hits itself",
        "injectors._processes:ancestors",
        always([]),
        _PROCESS + "test_nobody_hits_itself_or_what_is_above",
    ),
    Control(
        "power.off: a power request that is swallowed",
        "injectors.power:PowerOff.witness",
        witnessed,
        _POWER + "test_a_power_request_that_is_swallowed_is_not_witnessed",
    ),
    Control(
        "power.off: a boot that is swallowed",
        "injectors.power:PowerOff.residue",
        always([]),
        _POWER + "test_a_boot_that_is_swallowed_is_found_out",
    ),
    # The trainer's recovery from a living replica.
    Control(
        "peer: the state comes from a replica that is furthest",
        "chaos.workload.reference.recovery.peer:furthest",
        always(0),
        _PEER + "test_whoever_is_behind_gets_the_state_of_the_lowest_slot_that_is_furthest",
    ),
    Control(
        "peer: the members agree before they go on",
        "chaos.workload.reference.recovery.peer:FromPeer.restore",
        always(None),
        _PEER + "test_whoever_is_behind_gets_the_state_of_the_lowest_slot_that_is_furthest",
    ),
    Control(
        "peer: a state arrives whole or not at all",
        "chaos.workload.reference.recovery.peer:FromPeer._send",
        into_the_state_itself,
        _PEER + "test_a_broken_transfer_leaves_every_replica_as_it_was",
    ),
    Control(
        "peer: what a replaced rank holds is void",
        "chaos.workload.reference.rank.process:Rank._stand_by",
        stands_by_with_what_it_holds,
        _RANK + "test_a_rank_that_was_replaced_is_fenced_and_what_it_holds_is_void",
    ),
    Control(
        "peer: a generation's members meet nobody else",
        "chaos.workload.reference.store:_prefix",
        always("generation/"),
        _RANK + "test_a_generation_has_keys_of_its_own",
    ),
    Control(
        "peer: a job without any replica left does not begin anew",
        "chaos.workload.reference.launcher.supervisor:Supervisor._replica_left",
        always(True),
        _SUPERVISOR + "test_a_job_that_has_lost_every_replica_does_not_begin_anew",
    ),
    Control(
        "launcher: a main thread that keeps the others waiting is noticed",
        "chaos.workload.reference.launcher.progress:Progress.stuck",
        always([]),
        _PROGRESS + "test_whoever_does_not_enter_what_another_waits_in_is_stuck_after_the_patience",
    ),
    Control(
        "launcher: a main thread that follows no generation is noticed",
        "chaos.workload.reference.launcher.progress:Progress.stuck",
        always([]),
        _PROGRESS + "test_whoever_follows_none_of_several_generations_is_stuck_though_each_is_young",
    ),
    Control(
        "launcher: a former one's generation is taken over as it is",
        "chaos.workload.reference.launcher.adoption:_number",
        always(0),
        _ADOPTION + "test_the_newest_generation_counts_and_whoever_has_not_heard_of_it_is_behind",
    ),
    Control(
        "paths: a stopped process is no path's fault",
        "chaos.workload.reference.launcher.paths:Paths._lived",
        always(True),
        _PATHS + "test_a_stopped_process_is_no_paths_fault_not_even_when_it_wakes",
    ),
    # The ledger: unknown is not proven clean.
    Control(
        "ledger: a fault is promised before it is armed",
        "chaos.engine.faults:Conductor._promise",
        always(None),
        _LEDGER + "test_a_fault_that_cannot_be_promised_is_not_armed",
    ),
    Control(
        "ledger: a lab is gone only with its keeper",
        "chaos.engine.ledger:gone_with_lab",
        always("gone"),
        _LEDGER + "test_what_is_left_on_a_node_keeps_the_promise_open_while_its_lab_is_there",
    ),
    Control(
        "ledger: an agent that died has proven nothing",
        "chaos.engine.faults:Conductor._ask",
        always(("all is well", "")),
        _LEDGER + "test_a_node_that_does_not_answer_has_proven_nothing",
    ),
    Control(
        "cleanup: what is left is told",
        "chaos.scoring.scorecard:cleanup",
        always({"verdict": "clean", "text": "", "open": []}),
        _CLEANUP + "test_a_residue_makes_the_run_an_error_and_keeps_what_was_measured",
    ),
    # Undo: locks, records, and the storm that looks for residue.
    Control(
        "records: whoever works on a fault works alone, and on one that is there",
        "chaos.agent.records:Held.working",
        lambda *_, **__: contextlib.nullcontext(),
        _RECORDS + "test_an_overdue_record_is_taken_over_whoever_holds_it",
    ),
    Control(
        "records: one that somebody holds is told from one that nobody holds",
        "chaos.agent.records:_is_locked",
        always(False),
        _RECORDS + "test_a_record_is_taken_over_by_one_alone_and_only_when_nobody_holds_it",
    ),
    Control(
        "locks: a device is one fault's alone",
        "chaos.agent.locks:_lock",
        lambda path, *_: os.open(path, os.O_RDWR | os.O_CREAT),
        _LOCKS + "test_a_device_is_one_faults_alone_until_that_has_ended",
    ),
    Control(
        "storm: nothing is excused that a guardian should have undone",
        "tests.storm.station:Outcome.excuses",
        always(True),
        _STORM + "test_a_storm_finds_a_planted_bug",
    ),
]


def place(check: str) -> tuple[Any, str]:
    """Where a check is: the object that holds it, and its name there. Raises LookupError if it is not there."""
    module, _, path = check.partition(":")
    *owners, name = path.split(".")
    holder: Any = importlib.import_module(module)
    for owner in owners:
        holder = getattr(holder, owner)
    if not callable(getattr(holder, name, None)):
        raise LookupError(f"{check}: there is no such function; correct the entry in tests/controls.py")
    return holder, name


def disable(name: str) -> Control:
    """Make one check content with everything, for the rest of this process. Raises LookupError for an unknown name."""
    for control in CONTROLS:
        if control.name == name:
            holder, attribute = place(control.check)
            setattr(holder, attribute, control.content)
            return control
    raise LookupError(f"{name!r}: there is no such control; tests/controls.py lists them")
