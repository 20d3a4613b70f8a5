"""Runs on virtual clocks, one after another, as they are pickled on standard input.

An answer is the contents of run.json and no error, or none and the error.
"""

import os
import pickle
import sys

from kvscope.base.errors import KvscopeError
from kvscope.run import virtual


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
                facts = virtual.measure(experiment, directory)
            except KvscopeError as error:
                failure = error
            pickle.dump((facts, failure), answers)
            answers.flush()


if __name__ == "__main__":
    main()
