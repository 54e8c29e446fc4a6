"""Deprecated: `GPVAE` is in `gpin.sklearn`."""

import warnings

from gpin.sklearn import GPVAE

__all__ = ["GPVAE"]

warnings.warn("gpin.estimator is deprecated: import GPVAE from gpin.sklearn", DeprecationWarning, stacklevel=2)
