"""Which specs the records of the streams have: versions, fields, producers, records a minute.

catalog   what samples of records say
sampler   takes samples, of the busiest streams
"""
