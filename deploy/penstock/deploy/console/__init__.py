"""The console: one web page that shows all of a pipeline, live.

    poller     asks each part's `/status`, each in its own task
    streams    asks logd for streams, leaders and nodes
    view       makes one document of it (`penstock.deploy.console.snapshot`)
    web        serves the page, that document, records of a stream, and the few actions

It reads only, but for actions, which need its token. The page is HTML, CSS and JavaScript modules
as they lie in the package: no build step, no framework, nothing from elsewhere. What it shows is
telemetry, which anybody can write, so text is set as text, and a policy forbids markup. The page
asks for one document every second, which is made at most twice a second for all browsers together;
the server keeps no state for a browser.
"""
