"""The console: one web page that shows all of a pipeline, live.

    poller     asks each part's `/status`, each in a task of its own
    streams    asks logd for streams, leaders and nodes
    view       makes one document of it (`penstock.deploy.console.snapshot`)
    web        serves the page, that document, records of a stream, and the few actions

It reads only, but for actions, which need its token (docs/decisions/0050).
"""
