"""rcalign: classifiers for domains they have never seen."""

__version__ = "0.1.0"
