"""Placement'20, Table I and Figure 6: what is left of the pose after alignment, by where the transformer stands."""

from dataclasses import replace

from experiments.placed import ALL, ENDS, NOTE, angles
from pstn.experiment import Claim, Table

#: The CNN has nothing to align with.
ROWS = [replace(row, paper=dict(reversed(row.paper.items()))) for row in ALL if "cnn" not in row.name]
BEST = {"R": "sl1", "T": "dl1", "S": "dl1"}
OTHERS = ("c0", "c1", "dl1", "sl1")

TABLE = Table(
    "placement20/table1",
    "Placement 2020, Table I: spread of poses after alignment",
    ROWS,
    metrics=("pose_spread", "accuracy", "slope"),
    claims=[
        *(
            Claim(f"{data}: STN-{best.upper()} aligns better than STN-{other.upper()}{words}", f"{data}-{best}{end}",
                  f"{data}-{other}{end}", "pose_spread", False)
            for data, best in BEST.items() for end, words in ENDS[data] for other in OTHERS if other != best
        ),
        *(
            Claim(f"{data}: STN-C1 aligns worse than STN-C0{words}", f"{data}-c0{end}", f"{data}-c1{end}",
                  "pose_spread", False)
            for data in "RS" for end, words in ENDS[data]
        ),
    ],
    figures={"figure6": angles},
    quick=("R-c0", "R-sl1", "T-c1", "S-dl1"),
    note=f"{NOTE} The true angle is the one that turns a digit back, so a network that does lies along the diagonal; "
    "slope is that of the orthogonal regression of found on true angles, 1 for a perfect network, 0 for one that does "
    "not turn.",
)  # fmt: skip
