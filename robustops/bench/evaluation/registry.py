"""All methods by name: what is compared, and where it is. A line here plugs a detector or diagnoser in.

Classes are named, not imported: a command that only lists methods loads none of them.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from robustops.bench.evaluation.baselines.package import installed
from robustops.errors import unknown_name
from robustops.monitor import detect

DETECT, DIAGNOSE = "detect", "diagnose"
_BASELINES = "robustops.bench.evaluation.baselines"


@dataclass(frozen=True)
class Method:
    """One row of the tables.

    name: as in tables and file names; task: detect or diagnose; where: `module:Class`; package: that it
    needs beside those of the benchmark, "" for none; arguments: of the class, beside `seed`, which it gets if
    it takes one; ablation_of: the whole method that this is a part of; calibrated: false for a rule that
    has nothing to calibrate.
    """

    name: str
    task: str
    where: str
    package: str = ""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    ablation_of: str = ""
    calibrated: bool = True

    @property
    def available(self) -> bool:
        """Whether its package is installed."""
        return not self.package or installed(self.package)

    def make(self, seed: int) -> Any:
        """A new, unfitted detector or diagnoser."""
        module, _, name = self.where.partition(":")
        found = getattr(importlib.import_module(module), name)
        takes = inspect.signature(found).parameters
        return found(**({"seed": seed} if "seed" in takes else {}), **self.arguments)

    def digest(self) -> str:
        """Of the sources of its package, of the residuals that diagnosers and baselines share, and of its
        arguments: scores of another version are not reused.
        """
        module = importlib.import_module(self.where.partition(":")[0])
        total = hashlib.sha256(repr((self.where, sorted(self.arguments.items()))).encode())
        folders = dict.fromkeys((Path(str(module.__file__)).parent, Path(detect.__path__[0])))
        for path in (path for folder in folders for path in sorted(folder.glob("*.py"))):
            total.update(path.read_bytes())
        return total.hexdigest()[:16]


def _detector(name: str, where: str, **facts: Any) -> Method:
    return Method(name, DETECT, f"{_BASELINES}.{where}", **facts)


def _diagnoser(name: str, where: str) -> Method:
    return Method(name, DIAGNOSE, f"{_BASELINES}.{where}")


#: In the order of the tables.
METHODS: tuple[Method, ...] = (
    Method("own", DETECT, "robustops.monitor.detect.own:OwnDetector"),
    Method("ivs_paper", DETECT, "robustops.monitor.detect.ivs_paper:IVSPaper"),
    _detector("isolation_forest", "classical:IsolationForest"),
    _detector("lof", "classical:LocalOutlierFactor"),
    _detector("knn", "classical:NearestNeighbours"),
    _detector("ocsvm", "classical:OneClassSVM"),
    _detector("anomaly_transformer", "anomaly_transformer:AnomalyTransformer"),
    _detector("tranad", "tranad:TranAD"),
    _detector("omni_anomaly", "omni_anomaly:OmniAnomaly"),
    _detector("rlprobe", "rule_tools:RLProbe", package="rlprobe"),
    _detector("rlwatch", "rule_tools:RLWatch", package="rlwatch"),
    _detector("reward_z", "thresholds:RewardZ"),
    _detector("kl_threshold", "thresholds:KLThreshold"),
    _detector("random", "thresholds:Chance"),
    _detector("always_fault", "thresholds:AlwaysFault", calibrated=False),
    Method("own_diagnosis", DIAGNOSE, "robustops.monitor.diagnose.diagnosis:OwnDiagnosis"),
    _diagnoser("knn_classifier", "classifiers:NearestNeighbourClassifier"),
    _diagnoser("svm_classifier", "classifiers:SupportVectorClassifier"),
    _diagnoser("run", "root_cause:Run"),
    _diagnoser("causal_rca", "root_cause:CausalRCA"),
    _diagnoser("circa", "root_cause:CIRCA"),
    _diagnoser("chance", "classifiers:ChanceClassifier"),
)
#: The detector that stands before every diagnoser end to end, and that others are held against: the first
#: of these that is evaluated.
REFERENCE_DETECTORS = ("own", "ivs_paper", "isolation_forest")
#: The diagnoser that is shown over the horizon, the first of these that is evaluated.
REFERENCE_DIAGNOSERS = ("own_diagnosis", "svm_classifier")


def chosen(names: Sequence[str] | None = None) -> list[Method]:
    """The methods of these names in the order of the tables, all of them for None.

    Raises:
        ConfigError: a name that is not registered.
    """
    known = {method.name: method for method in METHODS}
    for name in names or ():
        if name not in known:
            raise unknown_name("method", name, known)
    return [method for method in METHODS if names is None or method.name in names]


def swept(methods: Sequence[Method]) -> list[Method]:
    """Those that are shown over the horizon: a detector and a diagnoser."""
    found = []
    for names in (REFERENCE_DETECTORS, REFERENCE_DIAGNOSERS):
        found += [m for name in names for m in methods if m.name == name and m.available][:1]
    return found


def reference_detector(names: Sequence[str]) -> str | None:
    """Of the detectors that were evaluated."""
    detectors = {method.name for method in METHODS if method.task == DETECT} & set(names)
    preferred = [name for name in REFERENCE_DETECTORS if name in detectors]
    return preferred[0] if preferred else next((n for n in names if n in detectors), None)
