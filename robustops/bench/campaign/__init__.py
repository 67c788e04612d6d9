"""The campaign of RFT-FaultBench: planned runs, healthy and faulty, and what is made of them."""
