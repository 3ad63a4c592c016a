"""Reports: from the ledger's rows to tables, in every format; loads neither PyTorch nor Ray."""
