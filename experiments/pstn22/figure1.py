"""P-STN 2022, Figure 1: the loss as a function of the transformation, for an STN and for a P-STN."""

from experiments.pstn22.placement import rows
from experiments.pstn22.rotated import PSTN_ROW, STN_ROW
from pstn.experiment import Claim, Table, curves

PLACED = rows(96)
NAMES = {"stn": "angle", "stn-96": "place", "stn-96-short": "place after a tenth of the epochs"}
TABLE = Table(
    "pstn22/figure1",
    "P-STN 2022, Figure 1: loss landscapes",
    [STN_ROW, PSTN_ROW, *PLACED],
    metrics=("minima", "accuracy", "nll"),
    claims=[
        Claim(f"P-STN's loss has fewer minima along the {what}", f"p{name}", name, "minima", False)
        for name, what in NAMES.items()
    ],
    figures={"landscape": curves("landscape", "distance from the truth", "loss", "stn", "pstn", "stn-96", "pstn-96")},
    quick=("stn", "pstn", "pstn-96"),
    note="The networks are those of pstn22/rotated and pstn22/placement. One parameter, the angle or the window's x, "
    "goes through its whole range while the others are true; the P-STN's loss is the mean over 32 draws of its own "
    "spread around that place. A valley counts as a minimum if it is at least 0.1 nats deep on both sides; mean over 8 "
    "pictures. The paper's figure has no numbers to compare with.",
)
