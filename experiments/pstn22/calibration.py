"""P-STN 2022, Figure 11: calibration on 100 digits of MNIST, for two weights of the KL divergence."""

from dataclasses import replace

from experiments.pstn22.table2 import TABLE as TABLE2
from pstn.experiment import Claim, Experiment, Table, reliability_curves

#: Mean and deviation of the ECE.
PAPER = {3e-4: (0.0567, 0.0065), 1e-4: (0.0271, 0.0088)}


def pstn(weight: float) -> Experiment:
    """The P-STN of Table 2 at one weight."""
    label = f"P-STN, w = {weight:g}"
    changes = {"label": label, "line": label, "grid": {"kl_weight": (weight,)}, "paper": {"ece": PAPER[weight]}}
    return replace(TABLE2.row("pstn-100"), name=f"pstn-{weight:g}", **changes)


OTHERS = {"CNN": "cnn-100", "STN": "stn-fair-100", "STN at lr 1e-4": "stn-100"}
TABLE = Table(
    "pstn22/calibration",
    "P-STN 2022, Figure 11: calibration, n = 100",
    [*(TABLE2.row(f"{name}-100") for name in ("cnn", "stn-fair", "stn", "learned")), *map(pstn, PAPER)],
    metrics=("ece", "nll", "brier", "accuracy"),
    claims=[
        *(
            Claim(f"less ECE than {words}, w = {weight:g}", f"pstn-{weight:g}", other, "ece", False)
            for weight in PAPER
            for words, other in OTHERS.items()
        ),
        Claim("less ECE at w = 1e-4 than at 3e-4", "pstn-0.0001", "pstn-0.0003", "ece", False),
    ],
    figures={"reliability": reliability_curves()},
    note="The networks are those of Table 2. ECE with 15 bins; the paper does not name its number, perhaps 10.",
)
