"""Run faults: 16 types of failures injected into training itself, as hooks (RFT-FaultBench)."""
