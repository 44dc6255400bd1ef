"""The parts of the StarPO trainer: filters, advantages, losses, log-probabilities."""
