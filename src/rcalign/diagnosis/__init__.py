"""Why a model will fail on a new domain: arrays in, a frozen result out. See docs/diagnosis.md for every number."""

from rcalign.diagnosis.along_training import contraction, tracking
from rcalign.diagnosis.diagnose import diagnose_features
from rcalign.diagnosis.findings import Diagnosis, to_dict, to_json
from rcalign.diagnosis.html_page import render_html
from rcalign.diagnosis.inputs import FeatureSet, load_features
from rcalign.diagnosis.output_formats import ENDINGS, render_diagnosis
from rcalign.diagnosis.priors import adapt_priors, estimate_priors
from rcalign.diagnosis.terminal import render_terminal
from rcalign.diagnosis.transport import Distance, cloud, wasserstein

__all__ = [
    "ENDINGS",
    "Diagnosis",
    "Distance",
    "FeatureSet",
    "adapt_priors",
    "cloud",
    "contraction",
    "diagnose_features",
    "estimate_priors",
    "load_features",
    "render_diagnosis",
    "render_html",
    "render_terminal",
    "to_dict",
    "to_json",
    "tracking",
    "wasserstein",
]
