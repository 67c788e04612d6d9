"""What speaks for a type."""

from robustops.monitor.diagnose.evidence import SPEAKING, evidence_for, speaking
from tests.monitor.diagnose.faulty import diagnoser, faulty


def test_signals_that_speak_for_a_type() -> None:
    learned = diagnoser().learned
    panel = faulty("kl_explosion", 700)
    reading = learned.read(panel)
    assert set(speaking(learned, reading, "kl_explosion")[:2]) == {"kl_ref_k3", "grad_norm"}
    assert "kl_ref_k3" not in speaking(learned, reading, "length_long")[:3]


def test_what_was_explained_already_is_not_said_again() -> None:
    learned = diagnoser().learned
    panel = faulty("kl_explosion", 700)
    evidence = evidence_for(learned, panel, learned.read(panel), "kl_explosion")
    columns = [one.column for one in evidence]
    assert len(set(columns)) == len(columns) and "kl_ref_k3" in columns
    assert sum("speaks for" in one.text for one in evidence) <= SPEAKING
    assert all(one.step >= 1 for one in evidence)
