"""Print every figure of docs/evidence that the records beside this file have.

    python results/tables.py [index] [arithmetic] [math] [gsm8k] [lab] [lookup] [planned] [tested] [stubborn]

Without a name it prints all parts.
"""

import argparse

from tables_arithmetic import print_arithmetic, print_math
from tables_gsm8k import print_gsm8k
from tables_index import print_index
from tables_lab import print_lab
from tables_lookup import print_lookup
from tables_planned import print_planned
from tables_stubborn import print_stubborn
from tables_tested import print_tested

PARTS = {
    "index": print_index, "arithmetic": print_arithmetic, "math": print_math, "gsm8k": print_gsm8k, "lab": print_lab,
    "lookup": print_lookup, "planned": print_planned, "tested": print_tested, "stubborn": print_stubborn,
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the figures of docs/evidence.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"one or more of {', '.join(PARTS)} (default: all)")
    names = parser.parse_args().parts or list(PARTS)
    if unknown := [name for name in names if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]}; choose from {', '.join(PARTS)}")
    for name in names:
        print(f"# {name}\n")
        PARTS[name]()
        print()


if __name__ == "__main__":
    main()
