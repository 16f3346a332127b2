"""A server of the OpenAI API for tests. The first part of a path is a way to answer: /good/v1/models. Prints its address, serves
until it is ended. Every connection has a thread; an answer that never ends stops when the client leaves."""
import collections, http.server, json, threading, time

prompts, lock = collections.defaultdict(list), threading.Lock()  # by way to answer


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def body(self, status, text, kind="application/json"):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def chunk(self, text):
        data = text.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def do_GET(self):
        mode = self.path.split("/")[1]
        if mode == "no_model":
            return self.body(200, '{"data": []}')
        if mode == "silent_list":
            return time.sleep(60)
        if mode == "key" and self.headers.get("authorization") != "Bearer sesame":
            return self.body(401, '{"error": {"message": "the key is wrong"}}')
        if self.path.endswith("/prompts"):
            return self.body(200, json.dumps(sorted(prompts[mode])))
        self.body(200, '{"data": [{"id": "stub"}]}')

    def do_POST(self):
        mode = self.path.split("/")[1]
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = request.get("prompt") or request["messages"][0]["content"]
        with lock:
            prompts[mode].append(prompt)
            number = len(prompts[mode])
        assert request["stream"] and request["model"] == "stub"
        if mode == "refuses" or mode == "half" and number % 2:
            return self.body(429, '{"error": {"message": "the queue is full", "code": "busy"}}')
        if mode == "html":
            return self.body(502, "<html>bad\ngateway</html>", "text/html")
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while mode in ("silent", "comments"):
            time.sleep(0.05)
            if mode == "comments":
                self.chunk(": waiting\n\n")
        if mode == "long_line":
            while True:
                self.chunk("data: " + "x" * 100000)
        if mode == "no_json":
            return self.chunk("data: {nothing\n\n")
        if mode == "error":
            return self.chunk('data: {"error": {"message": "a node is lost"}}\n\n')
        chat = "messages" in request
        i = 0
        while i < request["max_tokens"] or mode == "endless":
            choice = {"delta": {"content": "a"}} if chat else {"text": "a"}
            self.chunk("data: " + json.dumps({"choices": [choice], "usage": None}) + "\r\n\r\n")
            i += 1
            if mode == "cut":
                return self.close()
        if mode != "no_usage":
            usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": 2 * i}
            self.chunk("data: " + json.dumps({"choices": [], "usage": usage}) + "\n\n")
        if mode != "unended":
            self.chunk("data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def close(self):
        self.close_connection = True


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_):  # the client left
        pass


server = Server(("127.0.0.1", 0), Handler)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
