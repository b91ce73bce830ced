"""Validation of lines: is a line a record that its spec allows?"""
