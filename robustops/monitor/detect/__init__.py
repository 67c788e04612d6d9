"""Detection of run failures: healthy profile, residuals, exact invariants, detectors and their calibration.

Numpy only. `own` is our detector, `ivs_paper` the one of the RFT-FM paper, `conformal` turns scores of either
into p-values.
"""
