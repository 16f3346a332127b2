"""A router as older ones are, for tests: it keeps an account of what is asked, and opens nothing.

    old_router.py HOST OUTSIDE natpmp SECONDS     # NAT-PMP alone, which gives ports for so long
    old_router.py HOST OUTSIDE permanent          # UPnP-IGD alone, which takes no leases (error 725)

HOST is its address inside, OUTSIDE the one that it names. A line for each request: `tcp PORT SECONDS`, `closed tcp PORT`, `725`.
"""
import http.server, re, socket, struct, sys, threading

HOST, OUTSIDE, KIND = sys.argv[1:4]
SERVICE = "urn:schemas-upnp-org:service:WANIPConnection:1"


def say(*words):
    print(*words, flush=True)


def natpmp(seconds):
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.bind((HOST, 5351))
    while True:
        data, sender = s.recvfrom(1100)
        if data[0] != 0:  # PCP: another version
            s.sendto(struct.pack(">BBHI", 0, 128 + (data[1] & 0x7F), 1, 1), sender)
        elif data[1] == 0:
            s.sendto(struct.pack(">BBHI", 0, 128, 0, 1) + socket.inet_aton(OUTSIDE), sender)
        else:
            inside, outside, asked = struct.unpack(">HHI", data[4:12])
            name = "tcp" if data[1] == 2 else "udp"
            say(name, inside, asked) if asked else say("closed", name, inside)
            given = min(asked, seconds)
            s.sendto(struct.pack(">BBHIHHI", 0, 128 + data[1], 0, 1, inside, outside, given), sender)


def search():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("", 1900))
    s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("239.255.255.250") + socket.inet_aton(HOST))
    kind = "urn:schemas-upnp-org:device:InternetGatewayDevice:1"
    while True:
        data, sender = s.recvfrom(2048)
        if data.startswith(b"M-SEARCH") and kind.encode() in data:
            s.sendto(f"HTTP/1.1 200 OK\r\nST: {kind}\r\nUSN: uuid:1::{kind}\r\nLOCATION: http://{HOST}:5000/\r\n\r\n".encode(), sender)


def device(kind, inner):
    return f"<device><deviceType>urn:schemas-upnp-org:device:{kind}:1</deviceType>{inner}</device>"


def service(kind, place):
    return (f"<serviceList><service><serviceType>{kind}</serviceType><controlURL>{place}</controlURL><eventSubURL>/e</eventSubURL>"
            "<SCPDURL>/s</SCPDURL></service></serviceList>")


def devices(inner):
    return f"<deviceList>{inner}</deviceList>"


CONNECTION = device("WANConnectionDevice", service(SERVICE, "/control"))
WAN = device("WANDevice", service("urn:schemas-upnp-org:service:WANCommonInterfaceConfig:1", "/common") + devices(CONNECTION))
ROOT = '<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">' + device("InternetGatewayDevice", devices(WAN)) + "</root>"


class Control(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        pass

    def answer(self, text, code=200):
        self.send_response(code)
        self.send_header("Content-Type", "text/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_GET(self):
        self.answer(ROOT)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        action = self.headers["SOAPAction"].strip('"').split("#")[1]
        field = lambda name: re.search(f"<{name}[^>]*>([^<]*)", body)[1]
        inner = {"GetStatusInfo": "<NewConnectionStatus>Connected</NewConnectionStatus><NewLastConnectionError>ERROR_NONE</NewLastConnectionError>"
                                  "<NewUptime>100</NewUptime>",
                 "GetExternalIPAddress": f"<NewExternalIPAddress>{OUTSIDE}</NewExternalIPAddress>"}.get(action, "")
        envelope = '<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>%s</s:Body></s:Envelope>'
        if action == "AddPortMapping" and field("NewLeaseDuration") != "0":
            say("725")
            self.answer(envelope % '<s:Fault><detail><UPnPError xmlns="urn:schemas-upnp-org:control-1-0"><errorCode>725</errorCode>'
                        "<errorDescription>OnlyPermanentLeasesSupported</errorDescription></UPnPError></detail></s:Fault>", 500)
            return
        if action == "AddPortMapping":
            say(field("NewProtocol").lower(), field("NewExternalPort"), field("NewLeaseDuration"))
        elif action == "DeletePortMapping":
            say("closed", field("NewProtocol").lower(), field("NewExternalPort"))
        self.answer(envelope % f'<u:{action}Response xmlns:u="{SERVICE}">{inner}</u:{action}Response>')


if KIND == "natpmp":
    natpmp(int(sys.argv[4]))
threading.Thread(target=search, daemon=True).start()
http.server.ThreadingHTTPServer((HOST, 5000), Control).serve_forever()
