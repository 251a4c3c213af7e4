"""What looks on from outside, in a process of its own: a collector that takes all traces and keeps none, and a scraper.

python -m benchmarks.sink METRICS_PORT      # prints the collector's port, then runs until it is ended
"""

import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from benchmarks.measure import CLOCK

SCRAPE_S = 5.0


class Collector(BaseHTTPRequestHandler):
    """Takes what comes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """One request of spans."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def scrape(port: int) -> None:
    """As Prometheus does; a coordinator that does not serve yet is asked again."""
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=SCRAPE_S) as answer:
                answer.read()
        except OSError:
            CLOCK.sleep(0.2)
            continue
        CLOCK.sleep(SCRAPE_S)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=scrape, args=(int(sys.argv[1]),), daemon=True).start()
    print(server.server_port, flush=True)
    server.serve_forever()
