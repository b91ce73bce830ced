"""What sources that listen or ask over the network share."""
