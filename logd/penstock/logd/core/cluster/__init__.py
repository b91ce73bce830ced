"""What the metadata group replicates, and who decides: pure cores of the cluster."""
