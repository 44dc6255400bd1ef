"""What plays a policy in training: the model's own sampler, vLLM, or a script."""
