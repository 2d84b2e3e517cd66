"""Run seeds: ``python tests/chaos --seeds 1000``."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # where the package is

from chaos import FAULTS, TASKS, run_seed  # noqa: E402
from coterie._progress import progress_bar  # noqa: E402


def main() -> None:
    """Run seeds. Stop at the first failure, and print how to run it again."""
    parser = argparse.ArgumentParser(
        prog="python tests/chaos", description="Drive peers through faults, each of them from a seed."
    )
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--task", choices=list(TASKS), help="this task alone")
    parser.add_argument(
        "--fault", choices=list(FAULTS), action="append", help="this fault beside the weather; again for more"
    )
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    if given.seed is not None:
        print(run_seed(given.seed, given.task, given.fault))
        return
    began, messages, refused, crashes, faults = time.time(), 0, 0, 0, Counter[str]()
    done = 0
    with ProcessPoolExecutor(given.jobs) as pool, progress_bar("seeds") as progress:
        seeds = range(given.first, given.first + given.seeds)
        runs = {pool.submit(run_seed, seed, given.task, given.fault): seed for seed in seeds}
        for run in as_completed(runs):
            try:
                report = run.result()
            except Exception as error:
                pool.shutdown(wait=False, cancel_futures=True)
                more = f" --task '{given.task}'" if given.task else ""
                more += "".join(f" --fault {fault}" for fault in given.fault or ())
                again = f"python tests/chaos --seed {runs[run]}{more}"
                print(f"FAILED, seed {runs[run]}: {error}\nagain: {again}", file=sys.stderr)
                sys.exit(1)
            done, messages, crashes = done + 1, messages + report.messages, crashes + report.crashes
            refused += sum(report.refused.values())
            faults.update(report.faults)
            progress(done, given.seeds)
            if done % 50 == 0 and not sys.stderr.isatty():  # without a progress bar
                text = f"{done} seeds, {messages:,} messages, {refused:,} refused, {crashes:,} crashes"
                print(text, file=sys.stderr, flush=True)
    named = ", ".join(f"{name} {count}" for name, count in sorted(faults.items())) or "none"
    print(
        f"{done} seeds passed in {time.time() - began:.0f} s: {messages:,} messages, {refused:,} refused, "
        f"{crashes:,} crashes; faults: {named}"
    )


if __name__ == "__main__":
    main()
