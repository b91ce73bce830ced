"""What is decided about published messages before they are stored."""
