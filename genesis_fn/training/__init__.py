"""Training and fine-tuning of language models: settings, the step, the loop, evaluation."""
