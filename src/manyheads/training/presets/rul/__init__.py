"""The preset `rul`: remaining useful life of simulated engines, by a BiLSTM and eight heads over cycles."""
