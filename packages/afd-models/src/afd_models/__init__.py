"""What each role builds and loads: the cut of a MoE model, its stand-ins and the replay of its FFN stages."""

__version__ = "0.1.0"
