"""`accelerate launch` of N processes, without its messages about a failed one, which has printed its own.

python -m opasd.cli._launcher N ARGS...     runs `opasd train ARGS` in N processes
"""

import json
import logging
import os
import signal
import sys
from pathlib import Path

from accelerate.commands.config.config_args import default_config_file
from accelerate.commands.launch import launch_command, launch_command_parser
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from opasd.cli._processes import end_with_parent


def main(count: str, args: list[str]) -> None:
    """Launch and wait; exit code 1 if a process failed."""
    for name in ("torch.distributed.elastic", "torch.distributed.run", "accelerate"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    options = ["--num_processes", count]
    if not os.path.isfile(default_config_file):  # otherwise the user's `accelerate config` decides
        options += ["--multi_gpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        options += ["--main_process_port", "0"]
    end_with_parent()
    if os.getppid() != int(os.environ.get("OPASD_PARENT", os.getppid())):
        sys.exit(1)  # it ended before we could ask to end with it
    try:
        launch_command(launch_command_parser().parse_args([*options, "-m", "opasd.cli", "train", *args]))
    except ChildFailedError as error:
        rank, code = culprit({rank: failure.exitcode for rank, failure in error.failures.items()})
        Path(os.environ["OPASD_MEETING"], "ended").write_text(json.dumps({"rank": rank, "code": code}))
        sys.exit(1)
    except SignalException:
        sys.exit(1)


def culprit(codes: dict[int, int]) -> tuple[int, int]:
    """Return the process, and its exit code, that the others ended for: one that was killed, before those that failed.

    The launcher itself ends the others with SIGTERM, so one that was ended by that is named only where no other is.
    """
    return min(codes.items(), key=lambda item: (item[1] == -signal.SIGTERM, item[1], item[0]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
