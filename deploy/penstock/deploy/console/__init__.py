"""The console: one web page that shows all of a pipeline, live.

    polling    asks each part's `/status`, each in a task of its own
    streams    asks logd for streams, leaders and nodes
    view       makes one document of it (`penstock.deploy.core.picture`)
    web        serves the page, that document, records of a stream, and the few actions

It reads only, but for actions, which need its token (docs/decisions/0050).
"""
