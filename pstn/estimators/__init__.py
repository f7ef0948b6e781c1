"""scikit-learn's face of this library: classifiers of images and of time series with nothing to tune."""

from pstn.estimators.base import Pose
from pstn.estimators.images import PSTNClassifier
from pstn.estimators.series import PSTNTimeSeriesClassifier

__all__ = ["PSTNClassifier", "PSTNTimeSeriesClassifier", "Pose"]
