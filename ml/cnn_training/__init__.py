"""How the networks of `ml/descriptors/cnn.py` are trained: crops, augmentation, heads, the loop and its checkpoints."""
