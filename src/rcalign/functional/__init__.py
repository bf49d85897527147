"""The mathematics: pure functions of tensors. No state, no devices, no files."""
