"""Train the networks that `ml/descriptors/cnn.py` runs: crops, augmentation, heads, the loop and its checkpoints."""
