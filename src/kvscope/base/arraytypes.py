"""Names for types of NumPy arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[Any]  # integers of any width
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
