"""`accelerate launch` of N processes, without its messages about a failed one, which has printed its own.

python -m opasd.cli._launcher N ARGS...     runs `opasd train ARGS` in N processes
"""

import logging
import os
import sys

from accelerate.commands.config.config_args import default_config_file
from accelerate.commands.launch import launch_command, launch_command_parser
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError


def main(count: str, args: list[str]) -> None:
    """Launch and wait; exit code 1 if a process failed."""
    for name in ("torch.distributed.elastic", "torch.distributed.run", "accelerate"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    options = ["--num_processes", count]
    if not os.path.isfile(default_config_file):  # otherwise the user's `accelerate config` decides
        options += ["--multi_gpu", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
        options += ["--main_process_port", "0"]
    try:
        launch_command(launch_command_parser().parse_args([*options, "-m", "opasd.cli", "train", *args]))
    except ChildFailedError:
        sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
