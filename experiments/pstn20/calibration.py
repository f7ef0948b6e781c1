"""P-STN 2020 (preprint), Figures 5 and 6: calibration on 100 digits of MNIST, and against the prior's scale."""

from dataclasses import replace

from experiments.mnist import SCALES
from experiments.pstn20.table1 import TABLE as TABLE1
from pstn.experiment import Claim, Experiment, Table, against, reliability_curves

#: The curves of the figure: the preprint's choice, and priors on both sides of it.
SHOWN = (0.01, 0.05, 0.1, 0.2, 0.4)


def pstn(scale: float) -> Experiment:
    """The P-STN of Table 1 with one prior."""
    label = f"P-STN, σp = {scale:g}"
    changes = {"label": label, "line": label, "grid": {"prior_scale": (scale,)}, "paper": {}, "further": 0}
    changes["tags"] = {"σp": scale, "model": "P-STN"}
    return replace(TABLE1.row("pstn-100"), name=f"pstn-{scale:g}", **changes)


PLAIN = [replace(TABLE1.row(f"{name}-100"), paper={}, further=0) for name in ("cnn", "stn")]
TABLE = Table(
    "pstn20/calibration",
    "P-STN 2020, Figures 5 and 6: calibration, n = 100",
    [*PLAIN, *map(pstn, SCALES)],
    metrics=("ece", "nll", "brier", "accuracy"),
    claims=[
        Claim(f"less ECE at σp = 0.05 than {words}", "pstn-0.05", other, "ece", False)
        for words, other in (
            ("CNN", "cnn-100"),
            ("STN", "stn-100"),
            *((f"at {scale:g}", f"pstn-{scale:g}") for scale in SCALES if scale != 0.05),
        )
    ],
    figures={
        "reliability": reliability_curves("cnn-100", "stn-100", "pstn-0.05"),
        "priors": reliability_curves(*(f"pstn-{scale:g}" for scale in SHOWN)),
        "scale": against("σp", "model", ("ece", "nll")),
    },
    quick=("cnn-100", "stn-100", "pstn-0.01", "pstn-0.05", "pstn-0.4"),
    note="The networks are those of Table 1. The preprint has plots, no numbers to compare with. ECE with 15 bins.",
)
