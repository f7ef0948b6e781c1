"""P-STN 2022, Table 3 and Figure 10: CNN, STN and P-STN on time series of the UCR archive."""

from experiments.series import FURTHER, NOTE, along_time, cnn, learned, pstn, row, stn
from pstn.experiment import Claim, Experiment, Table

#: Mean and deviation of the accuracy in per cent: CNN, STN, P-STN.
PAPER = {
    "FaceAll": ((80.83, 0.62), (82.28, 0.42), (84.31, 0.75)),
    "TwoPatterns": ((97.92, 0.53), (99.79, 0.04), (99.96, 0.04)),
    "Wafer": ((99.63, 0.05), (99.18, 0.17), (98.86, 0.20)),
    "UWaveGestureLibraryX": ((74.15, 1.27), (79.77, 0.42), (81.13, 0.46)),
    "PhalangesOutlinesCorrect": ((79.88, 1.32), (82.26, 0.98), (81.66, 0.59)),
}
#: The paper's choice of w. Its list is in the order of its scripts, not of its table.
W = {
    "FaceAll": 1e-4, "Wafer": 1e-5, "UWaveGestureLibraryX": 1e-3, "TwoPatterns": 0.0, "PhalangesOutlinesCorrect": 1e-4
}  # fmt: skip
W_GRID = (0.0, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)


def rows(name: str) -> list[Experiment]:
    """The rows of a set."""
    paper = [{"accuracy": (mean / 100, deviation / 100)} for mean, deviation in PAPER[name]]
    chosen = f"the paper's w is {W[name]:g}"
    more = {"further": FURTHER.get(name, 0)}
    return [
        row(name, "cnn", "CNN", cnn, paper=paper[0], **more),
        row(name, "stn", "STN", stn, paper=paper[1], **more),
        row(name, "pstn", "P-STN", pstn, grid={"kl_weight": W_GRID}, paper=paper[2], note=chosen, **more),
        *learned(name, paper=paper[2], **more),
    ]


TABLE = Table(
    "pstn22/table3",
    "P-STN 2022, Table 3: time series",
    [row for name in PAPER for row in rows(name)],
    claims=[
        *(Claim(f"P-STN beats {other} on {name}", f"pstn-{name.lower()}", f"{other.lower()}-{name.lower()}")
          for name in ("FaceAll", "TwoPatterns", "UWaveGestureLibraryX") for other in ("CNN", "STN")),
        *(Claim(f"CNN beats {other} on Wafer", "cnn-wafer", f"{other.lower().replace('-', '')}-wafer")
          for other in ("STN", "P-STN")),
        *(Claim(f"learned spread beats P-STN on {name}", f"wide-{name.lower()}", f"pstn-{name.lower()}")
          for name in PAPER),
        Claim("STN beats CNN on PhalangesOutlinesCorrect", "stn-phalangesoutlinescorrect",
              "cnn-phalangesoutlinescorrect"),
    ],
    figures={"augmentations": along_time},
    quick=("cnn-faceall", "stn-faceall", "pstn-faceall"),
    fleet=20,
    note=NOTE,
)  # fmt: skip
