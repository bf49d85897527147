"""Why a model will fail on a new domain: arrays in, a frozen result out. See docs/diagnosis.md for every number."""

from rcalign.diagnosis.html import render_html
from rcalign.diagnosis.inputs import FeatureSet, load_features
from rcalign.diagnosis.priors import adapt_priors, estimate_priors
from rcalign.diagnosis.render import ENDINGS, render_diagnosis
from rcalign.diagnosis.report import diagnose_features
from rcalign.diagnosis.results import Diagnosis, to_dict, to_json
from rcalign.diagnosis.terminal import render_terminal
from rcalign.diagnosis.tracking import contraction, tracking
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
