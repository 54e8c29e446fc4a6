"""Deprecated: `expected_log_square` is in `gpin.inference.gp`."""

import warnings

from gpin.inference.gp import expected_log_square

__all__ = ["expected_log_square"]

warnings.warn(
    "gpin.special is deprecated: import expected_log_square from gpin.inference.gp", DeprecationWarning, stacklevel=2
)
