# A hub that misbehaves, for tests/lua/pull.lua: http://127.0.0.1:PORT/MODE is a hub whose only model, a/b, has one file
# of 300,000 bytes; MODE says what is wrong with it. Prints its port; requests are logged to the file that is named.
import hashlib, http.server, json, os, socketserver, sys, threading, time

DATA = bytes((i * 7919 + i // 251) & 255 for i in range(300000))
SHA = hashlib.sha256(DATA).hexdigest()
counts, log, lock = {}, open(sys.argv[1], "a", buffering=1), threading.Lock()


class Hub(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *a):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for k, v in headers.items():
            self.send_header(k.replace("_", "-"), v)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        mode, path = self.path[1:].split("/", 1)
        mark = self.headers.get("Range") or "-"
        log.write("%s %s %s %s\n" % (mode, path, mark, self.headers.get("Authorization") or "-"))
        with lock:
            n = counts[mode, path] = counts.get((mode, path), 0) + 1
        if path.startswith("api/"):
            return self.list(mode)
        start = int(mark[6:-1]) if mark != "-" and mode != "norange" else 0
        body = DATA[start:]
        headers = {}
        status = 200
        if start:
            status, headers["Content_Range"] = 206, "bytes %d-%d/%d" % (start, len(DATA) - 1, len(DATA))
        if mode == "redirect" and "cdn" not in path:
            return self.answer(302, Location="http://localhost:%d/redirect/cdn" % port)
        if mode == "relative" and "cdn" not in path:
            return self.answer(307, Location="/relative/cdn")
        if mode == "loop":
            return self.answer(302, Location=self.path)
        if mode == "elsewhere":
            return self.answer(302, Location="file:///etc/passwd")
        if mode in ("401", "403", "404", "410"):
            return self.answer(int(mode), b'{"error": "not for you"}')
        if mode == "busy" and n < 3:
            return self.answer(503, b'{"error": "come back"}')
        if mode == "liar":
            return self.answer(200, body + b"x")
        if mode == "forever":
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(bytes(65536))
            except OSError:
                return
        if mode == "rotten" or mode == "once" and n == 1:
            body = body[:-1] + b"!"
        if mode == "wrongpart" and start:
            headers["Content_Range"] = "bytes 5-%d/%d" % (len(DATA) - 1, len(DATA))
        if mode in ("early", "norange", "wrongpart", "stall") and n == 1:
            self.answer(status, body[:100000], Content_Length=str(len(body)), **headers)
            self.wfile.flush()
            if mode == "stall":
                time.sleep(8)
            self.close_connection = True
            return
        if mode == "slow":  # whoever asks twice has not seen that another one is at work
            self.answer(status, body[:100000], Content_Length=str(len(body)), **headers)
            self.wfile.flush()
            time.sleep(1.5)
            return self.wfile.write(body[100000:])
        self.answer(status, body, **headers)

    def list(self, mode):
        files = [{"rfilename": "m-Q4_K_M.gguf", "size": len(DATA), "lfs": {"sha256": SHA, "size": len(DATA)}}]
        if mode == "missing":
            return self.answer(404, b'{"error": "Repository not found"}')
        if mode == "junk":
            return self.answer(200, b"<html>")
        if mode == "escape":
            files[0]["rfilename"] = "../../x.gguf"
        if mode == "absolute":
            files[0]["rfilename"] = "/tmp/x.gguf"
        if mode == "huge":
            files[0]["lfs"]["size"] = 1 << 60
        if mode == "many":
            files += [{"rfilename": "m-Q8_0.gguf", "size": len(DATA), "lfs": {"sha256": SHA, "size": len(DATA)}}]
        if mode == "folder":
            files = [{"rfilename": p, "size": len(DATA)} for p in ("config.json", "model.safetensors", "x/y.json", "z.py")]
        self.answer(200, json.dumps({"sha": "0123abcd", "siblings": files}).encode())


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True


server = Server(("127.0.0.1", 0), Hub)
port = server.server_port
print(port, SHA, os.getpid(), flush=True)
server.serve_forever()
