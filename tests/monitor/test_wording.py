from robustops.monitor.verdict import Verdict
from robustops.monitor.wording import headline


def test_headlines():
    assert headline(Verdict("healthy")) == "healthy"
    assert headline(Verdict("not_observed")) == "not observed"
    found = Verdict("anomalous", onset=7, family="reward", type="reward_spike")
    assert headline(found) == "anomalous from step 7: reward / reward_spike"
    unknown = Verdict("anomalous", onset=7, family="unknown", type="unknown")
    assert headline(unknown) == "anomalous from step 7: unknown"
