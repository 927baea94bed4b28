"""How good predictions are (AUC, log loss, calibration; GAUC, NDCG, MRR within groups), and how fast rows pass."""
