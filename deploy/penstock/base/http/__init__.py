"""HTTP/1.1 for every part: one client, one server, both over h11 (RFC 9112).

`client` asks: `HttpClient` on its own thread, with a connection that is kept, and `fetch` on
an event loop. `server` answers. Neither follows redirects, reads proxies from the environment, or
holds more of a message than its caller allows.
"""

from penstock.base.extras import require

require("service", "h11")
