"""The console's history: figures over 15 minutes, 6 hours and 7 days.

samples    measures the pipeline: rates since the last look, and levels
rings      keeps samples in rows of 15 s, 5 minutes and 1 hour
file       keeps those rows over a restart
recorder   does so every 15 seconds
"""
