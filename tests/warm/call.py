"""Call the function that is pickled on standard input; its result, pickled, on standard output."""

import os
import pickle
import sys

with os.fdopen(os.dup(1), "wb") as answer:
    os.dup2(2, 1)  # what the function prints is not the answer
    function, given = pickle.load(sys.stdin.buffer)
    pickle.dump(function(*given), answer)
