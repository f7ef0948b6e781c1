"""Placement'20, Table II: errors on turned, shifted and scaled digits, by where the transformer stands."""

from experiments.placed import ALL, ENDS, NOTE, aligned
from pstn.experiment import Claim, Table

BEST = {"R": "sl1", "T": "dl1", "S": "dl1"}
NAMES = {"cnn": "the CNN", "c0": "STN-C0", "c1": "STN-C1", "dl1": "STN-DL1", "sl1": "STN-SL1"}

TABLE = Table(
    "placement20/table2",
    "Placement 2020, Table II: digits turned, shifted and scaled",
    ALL,
    metrics=("accuracy", "pose_spread", "nll", "ece"),
    claims=[
        *(
            Claim(f"{data}: {NAMES[best]} beats {words}{recipe}", f"{data}-{best}{end}", f"{data}-{other}{end}")
            for data, best in BEST.items() for end, recipe in ENDS[data]
            for other, words in NAMES.items() if other != best
        ),
        *(
            Claim(f"{data}: {NAMES[other]}, which warps the input, beats STN-C1{recipe}", f"{data}-{other}{end}",
                  f"{data}-c1{end}")
            for data in "RS" for end, recipe in ENDS[data] for other in ("c0", "dl1", "sl1") if other != BEST[data]
        ),
        *(Claim(f"T: STN-SL1 beats STN-C1{recipe}", f"T-sl1{end}", f"T-c1{end}") for end, recipe in ENDS["T"]),
    ],
    figures={f"figure5-{data}": aligned(data) for data in ("R", "T", "S", "T-short", "S-short")},
    quick=("R-cnn", "R-c1", "R-sl1", "R-pstn", "T-c0", "S-sl1"),
    note=NOTE,
)  # fmt: skip
