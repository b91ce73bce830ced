"""Decisions on published messages before they are stored."""
