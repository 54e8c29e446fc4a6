"""`gpin demo`: a VAE and a GP encoder on scikit-learn's digits, trained, compared, pictured and written up.

Each file imports only from those before it: experiment, estimates, comparison, terminal, figures, page, folder.
"""

from gpin.demo.comparison import Result
from gpin.demo.experiment import Contender, Digits, Settings, load_digits
from gpin.demo.folder import run
from gpin.demo.page import compose
from gpin.demo.terminal import show

__all__ = ["Contender", "Digits", "Result", "Settings", "compose", "load_digits", "run", "show"]
