-- A small HTTP client for tests, on sockets, that reads streams event by event; and the server's process.
local ffi = require "ffi"
ffi.cdef [[
struct test_in { uint16_t family, port; uint32_t address; uint8_t zero[8]; };
struct test_poll { int fd; short events, revents; };
int socket(int, int, int); int connect(int, const void *, unsigned); int close(int); int shutdown(int, int);
long send(int, const void *, size_t, int); long recv(int, void *, size_t, int); int poll(void *, unsigned long, int);
uint16_t htons(uint16_t); uint32_t htonl(uint32_t); int kill(int, int); int usleep(unsigned);
]]
local C = ffi.C
local M = {}

--- A directory with the tiny model, and a chat template.
function M.templated(template)
  local dir = os.tmpname()
  os.remove(dir)
  os.execute(("mkdir %s && ln -s $PWD/tests/data/tiny-llama/* %s/"):format(dir, dir))
  local f = assert(io.open(dir .. "/chat_template.jinja", "w"))
  f:write(template)
  f:close()
  return dir
end

function M.sleep(s) C.usleep(s * 1e6) end

--- What f gives once that is `want`; or what it gives in the end, if it never is: a slow machine takes its time.
function M.becomes(want, f)
  local v
  for _ = 1, 400 do
    v = f()
    if v == want then break end
    M.sleep(0.05)
  end
  return v
end

local Conn = {}
Conn.__index = Conn
local buffer = ffi.new "char[65536]"

function M.dial(port)
  local a = ffi.new("struct test_in", { family = 2, port = C.htons(port), address = C.htonl(0x7f000001) })
  local fd = C.socket(2, 1, 0)
  if C.connect(fd, a, ffi.sizeof(a)) ~= 0 then
    C.close(fd)
    return nil
  end
  return setmetatable({ fd = fd, held = "" }, Conn)
end

function Conn:send(s) return tonumber(C.send(self.fd, s, #s, 0x4000)) end
-- More bytes; false at the end, or when none come for `seconds`: by default longer than the slowest machine thinks.
function Conn:more(seconds)
  local p = ffi.new("struct test_poll[1]", { { fd = self.fd, events = 1 } })
  if C.poll(p, 1, (seconds or 300) * 1000) <= 0 then return false end
  local n = tonumber(C.recv(self.fd, buffer, 65536, 0))
  if n <= 0 then return false end
  self.held = self.held .. ffi.string(buffer, n)
  return true
end
local function take(self, n)
  local s = self.held:sub(1, n)
  self.held = self.held:sub(n + 1)
  return s
end
function Conn:until_(mark, seconds)
  while true do
    local _, b = self.held:find(mark, 1, true)
    if b then return take(self, b) end
    if not self:more(seconds) then return nil end
  end
end
function Conn:bytes(n)
  while #self.held < n do if not self:more() then return nil end end
  return take(self, n)
end
--- Has something come, or the end?
function Conn:ready()
  return C.poll(ffi.new("struct test_poll[1]", { { fd = self.fd, events = 1 } }), 1, 0) == 1
end
function Conn:close() C.close(self.fd) end
function Conn:half_close() C.shutdown(self.fd, 1) end

--- Sends a request; body: a text, or nil. headers: lines, or nil.
function Conn:ask(method, path, body, headers)
  self:send(("%s %s HTTP/1.1\r\nHost: t\r\n%s%s\r\n%s"):format(method, path, headers or "",
    body and ("Content-Type: application/json\r\nContent-Length: %d\r\n"):format(#body) or "", body or ""))
end
--- Status and headers (lower-case names).
function Conn:head()
  local text
  repeat
    text = self:until_ "\r\n\r\n"
    if not text then return nil end
  until not text:find "^HTTP/1.1 1%d%d"
  local h = {}
  for k, v in text:gmatch "\n([%w%-]+): ([^\r]*)" do h[k:lower()] = v end
  return tonumber(text:match "^HTTP/1.1 (%d+)"), h
end
--- The next chunk of a stream: "" at its end, nil if it breaks off.
function Conn:chunk()
  local n = self:until_ "\r\n"
  n = n and tonumber(n:match "^%x+", 16)
  local s = n and self:bytes(n + 2)
  return s and s:sub(1, n)
end
--- The rest of an answer whose head has been read; nil if it breaks off.
function Conn:body(h)
  if h["content-length"] then return self:bytes(tonumber(h["content-length"])) end
  local parts = {}
  while true do
    local s = self:chunk()
    if not s then return nil, table.concat(parts) end
    if s == "" then return table.concat(parts) end
    parts[#parts + 1] = s
  end
end

--- One request on a connection of its own: status, body, headers.
function M.call(port, method, path, body, headers)
  local c = assert(M.dial(port), "no connection")
  c:ask(method, path, body, headers)
  local status, h = c:head()
  local text, part = nil, nil
  if status then text, part = c:body(h) end
  c:close()
  return status, text or part, h
end

-- A server process --------------------------------------------------------------------------------------------

local function read(path)
  local f = io.open(path)
  local s = f and f:read "*a" or ""
  if f then f:close() end
  return s
end

--- Starts `perilune serve ARGS`: { port, pid, log(), signal(n), wait() = exit code }.
function M.serve(args)
  local dir = os.tmpname()
  os.remove(dir)
  os.execute("mkdir " .. dir)
  os.execute(("(%s/perilune serve %s --port 0 >%s/out 2>%s/err & p=$!; echo $p >%s/pid; wait $p; echo $? >%s/code) "
    .. ">/dev/null 2>&1 &"):format(os.getenv "PL_BUILD" or "build", args, dir, dir, dir, dir))
  local s = { dir = dir }
  for _ = 1, 600 do
    s.port = tonumber(read(dir .. "/out"):match ":(%d+)\n")
    if s.port or read(dir .. "/code") ~= "" then break end
    M.sleep(0.05)
  end
  s.pid = tonumber(read(dir .. "/pid"))
  -- a test that fails leaves no server behind
  s.guard = ffi.gc(ffi.new "char[1]", function() if s.pid then C.kill(s.pid, 9) end end)
  function s.log() return read(dir .. "/err") end
  function s.signal(n) C.kill(s.pid, n) end
  function s.wait(seconds)
    for _ = 1, (seconds or 20) * 20 do
      local code = tonumber(read(dir .. "/code"))
      if code then
        ffi.gc(s.guard, nil)
        os.execute("rm -r " .. dir)
        return code
      end
      M.sleep(0.05)
    end
  end
  assert(s.port, "the server did not start: " .. s.log())
  return s
end

return M
