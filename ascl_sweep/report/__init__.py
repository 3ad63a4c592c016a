"""Reports on the results in a store, in every format. Imports neither PyTorch nor Ray."""
