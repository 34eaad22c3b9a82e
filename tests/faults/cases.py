"""Faults whose tests are part of `make test`: the tests are run and counted by what they do."""

import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

from tests.faults.common import Result
from tests.processes import ROOT, environment

FAULTS, SERVERS, TRAINER = "tests/faults/test_", "tests/rollout/vllm/test_server.py", "tests/trainer/test_trainer.py"
CASES = {
    f"{FAULTS}damaged_runs.py::test_the_last_good_checkpoint_is_used": (
        "a checkpoint cut, zeroed, flipped, emptied, with NaN, with files added, of another run or of another step",
        "the last whole one is used, and said; the run ends as if undisturbed",
    ),
    f"{FAULTS}damaged_runs.py::test_a_checkpoint_whose_manifest_fits_is_still_checked": (
        "a checkpoint whose manifest fits, and whose parts do not",
        "one message",
    ),
    f"{FAULTS}damaged_runs.py::test_a_run_without_a_whole_checkpoint_is_refused_and_not_changed": (
        "no checkpoint that is whole",
        "refused; no file changes",
    ),
    f"{FAULTS}damaged_runs.py::test_lost_metrics_are_taken_from_the_checkpoint": (
        "`metrics.jsonl` lost, whole or in part",
        "its rows come back from the checkpoint, and that is said",
    ),
    f"{FAULTS}damaged_runs.py::test_a_configuration_without_its_fields_does_not_mean_the_defaults": (
        "an empty or cut `config.yaml`",
        "refused",
    ),
    f"{FAULTS}damaged_runs.py::test_a_run_killed_after_its_first_validation_has_that_row_once": (
        "killed after the first validation",
        "its row is there once",
    ),
    f"{FAULTS}damaged_runs.py::test_the_result_appears_whole": (
        "killed while `final` is written",
        "none, or a whole one",
    ),
    f"{FAULTS}mistakes.py::test_a_folder_that_vanishes_in_the_middle_of_a_run": (
        "a folder that vanishes",
        "one message",
    ),
    f"{FAULTS}mistakes.py::test_the_lock_of_a_process_whose_number_another_has": (
        "a lock with the number of a process that another has now",
        "it holds nobody up",
    ),
    f"{FAULTS}mistakes.py::test_a_clock_that_was_set_back": (
        "a clock that was set back",
        "the last step's checkpoint is used",
    ),
    f"{FAULTS}mistakes.py::test_an_adapter_of_nan_or_of_nonsense_is_refused": (
        "an adapter of NaN or nonsense",
        "refused",
    ),
    f"{FAULTS}mistakes.py::test_a_mistake_is_one_message": (
        "commands that once ended in tracebacks or not at all",
        "one message, code 2",
    ),
    f"{FAULTS}mistakes.py::test_closed_and_full_output": ("an output that is closed or full", "no traceback"),
    f"{FAULTS}memory.py::test_a_rollout_that_does_not_fit_alone_is_set_aside_and_counted": (
        "no memory for one long rollout",
        "it is set aside and counted; the step goes on",
    ),
    f"{FAULTS}stopping.py::test_a_reader_that_ends_gets_a_checkpoint": (
        "a run whose output goes to `head`",
        "a checkpoint, code 75",
    ),
    f"{FAULTS}stopping.py::test_a_stop_gives_up_rollouts_and_saves": (
        "a stop while an endless rollout is sampled",
        "it is given up; a checkpoint; the resumed run ends as if undisturbed",
    ),
    f"{FAULTS}stopping.py::test_an_evaluation_that_is_stopped_continues": (
        "SIGTERM, SIGHUP or SIGINT of an evaluation",
        "a message, code 143, 129 or 130; the same command continues",
    ),
    f"{FAULTS}stopping.py::test_a_merge_that_is_stopped_leaves_nothing": (
        "SIGTERM, SIGHUP or SIGINT of a merge",
        "nothing is left behind; the same command ends it",
    ),
    "tests/cli/test_sweep.py::test_it_survives_interruption": (
        "SIGTERM, SIGINT, SIGHUP or SIGKILL of a sweep with two runs at work",
        "its runs save and end; the same command continues",
    ),
    f"{FAULTS}launcher.py::test_the_mistake_of_another_process_is_shown": (
        "an error in a process other than the first",
        "shown",
    ),
    f"{FAULTS}untrusted_folders.py::test_no_command_runs_the_models_code": (
        "a run's folder whose model brings code, under each command",
        "nothing of it is executed",
    ),
    f"{FAULTS}untrusted_folders.py::test_a_folder_names_no_module_to_import": (
        "a run's folder that names a plugin or a grader",
        "not imported; the flag to trust it is named",
    ),
    f"{FAULTS}traps.py::test_a_link_out_of_a_runs_folder_is_not_followed": (
        "a run's folder with a link out of it, under each command",
        "refused; what the link names is neither read nor written",
    ),
    f"{FAULTS}traps.py::test_a_link_out_of_an_evaluations_folder_is_not_followed": (
        "the same of an evaluation",
        "refused; what the link names is neither read nor written",
    ),
    f"{FAULTS}traps.py::test_a_pipe_in_a_runs_folder_holds_nobody_up": (
        "a run's folder with a pipe in it, under each command",
        "refused; no hang",
    ),
    f"{FAULTS}traps.py::test_an_evaluation_names_no_grader_to_import": (
        "an evaluation that names a grader",
        "not imported; the flag to trust it is named",
    ),
    f"{FAULTS}untrusted_folders.py::test_a_pickled_adapter_is_not_executed": (
        "an adapter that is a hostile pickle",
        "not executed",
    ),
    f"{TRAINER}::test_nan_stops_the_run_and_keeps_the_rollouts": (
        "a loss or gradients of NaN",
        "the run stops before the update, and keeps the rollouts",
    ),
    f"{TRAINER}::test_nan_skips_the_step_where_so_configured": (
        "the same, with `skip`",
        "the step is skipped and counted",
    ),
    f"{SERVERS}::test_a_server_killed_in_the_middle_of_a_batch_loses_nothing": (
        "a server that dies in a batch",
        "the others give the same completions",
    ),
    f"{SERVERS}::test_what_one_server_spoils_is_asked_again": (
        "a server that hangs, drips, cuts, floods or lies",
        "it is asked again; the same completions",
    ),
    f"{SERVERS}::test_a_batch_that_waits_can_be_interrupted": ("a stop with a silent server", "it ends at once"),
    f"{SERVERS}::test_a_servers_words_cannot_steer_a_terminal": ("control characters in a server's words", "not shown"),
    f"{SERVERS}::test_all_dead_is_one_clear_error_after_the_retries": ("no server answers", "one message"),
}


def cases(place: Path) -> list[Result]:
    """Run the tests, and count each one's cases."""
    report = place / "cases.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CASES, f"--junitxml={report}"]
    subprocess.run(command, cwd=ROOT, env=environment(), check=False)
    results = {node.rpartition("::")[2]: Result(*about) for node, about in CASES.items()}
    for case in xml.parse(report).getroot().iter("testcase"):
        result = results[case.get("name", "").partition("[")[0]]
        result.tried += 1
        result.expect(case.find("failure") is None and case.find("error") is None, case.get("name", ""))
    for result in results.values():
        result.expect(result.tried, "the test did not run")
    return list(results.values())
