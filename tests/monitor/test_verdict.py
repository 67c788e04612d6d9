import json
import math

from robustops.monitor.verdict import Evidence, Verdict


def test_a_verdict_is_plain_json_with_the_promised_keys() -> None:
    evidence = Evidence("optimisation", "adv_mean", 3, 0.5, 0.0, 0.0, math.inf, "advantages have mean 0.5")
    verdict = Verdict(
        "anomalous", 3, "credit", "baseline_shift", {"baseline_shift": 0.9}, 0.7, evidence=(evidence,)
    )
    body = json.loads(json.dumps(verdict.to_dict(), allow_nan=False))
    wanted = {"verdict", "onset", "family", "type", "labels", "severity", "evidence", "missing"}
    assert wanted <= body.keys()
    assert body["p_value"] is None
    assert body["evidence"][0]["score"] == "Infinity"
    assert body["labels"] == {"baseline_shift": 0.9}
