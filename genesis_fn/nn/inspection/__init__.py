"""What a model does with an input, found by tracing it: `nn.summary`."""
