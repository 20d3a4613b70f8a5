"""Modeled runs, one after another, as they are pickled on standard input; of each what it became.

An answer is the contents of run.json and no error, or none and the error.
"""

import os
import pickle
import sys

from kvscope.base.errors import KvscopeError
from kvscope.cli.batch import measure_here
from kvscope.run import supervisor


def main() -> None:
    """Answer until standard input ends."""
    with os.fdopen(os.dup(1), "wb") as answers:
        os.dup2(2, 1)  # what a run prints is no answer
        while True:
            try:
                experiment, directory = pickle.load(sys.stdin.buffer)
            except EOFError:
                return
            facts, failure = None, None
            try:
                facts = supervisor.run(experiment, directory, measure=measure_here)
            except KvscopeError as error:
                failure = error
            pickle.dump((facts, failure), answers)
            answers.flush()


if __name__ == "__main__":
    main()
