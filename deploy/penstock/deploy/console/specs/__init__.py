"""The specs of the streams' records: versions, fields, producers, records a minute.

catalog   what samples of records say
sampler   takes samples, of the busiest streams
"""
