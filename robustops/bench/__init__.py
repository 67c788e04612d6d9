"""RFT-FaultBench: failures injected into training runs, and what is made of them."""
