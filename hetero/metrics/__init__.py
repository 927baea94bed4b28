"""How good predictions are (AUC, GAUC, log loss, normalized entropy, calibration), and how fast rows pass."""
