-- A load over HTTP: 64 clients that read, read slowly, stop reading, half-close, send in pieces or several at once, or
-- go away in the middle, while policies and API keys are replaced; then a drain. Every answer that is complete is the
-- one that the request gets alone; what is aborted ends within one step; no page, descriptor or memory is lost.
-- PL_SOAK_SECONDS: how long (15); PL_SEED. The server is this script in a process of its own, which sees what no
-- client can.
local cjson, ffi = require "cjson", require "ffi"
local pl = require "pl"
local tiny, CONTEXT, PAGE = "tests/data/tiny-llama", 512, 64 * 4 * 2 * 32 * 2 * 2

-- The server ---------------------------------------------------------------------------------------------------

local function write(path, text)
  local f = assert(io.open(path .. ".new", "wb"))
  f:write(text)
  f:close()
  assert(os.rename(path .. ".new", path))
end

local function serve(dir)
  local policies = { "fair", "deadline", "longest_prefix_first", "decode_first",
    function(s) for r in s:waiting() do s:prefill(r, 7) end for r in s:running() do s:decode(r) end end,
    function() error "mine" end,
    function(s) for r in s:running() do s:preempt(r) end end }
  local s = require("pl.serve").open({ model = tiny, name = "tiny", keys = dir .. "/keys", context = CONTEXT,
    drain_s = 60,
    load = { batch = 16, queue = 64, tokens = 128, cache_bytes = 60 * PAGE, host_cache_bytes = 20 * PAGE,
      disk_cache = dir, disk_cache_bytes = 40 * (PAGE + 4096) },
    http = { port = 0, max_requests = 128, buffer_bytes = 32768, header_s = 3, body_s = 3, idle_s = 5, send_s = 3,
      log_fd = -1 } }, function(text) io.stderr:write(text, "\n") end)
  local engine = s.engine_model.engine
  local n = { swaps = 0, dropped = 0, late = 0, turns = 0 }
  local dropped, drop, turn, close = {}, s.drop, s.turn, s.http.close
  function s.drop(self, job)
    for _, c in ipairs(job.choices) do
      if c.request and not c.request.finish then
        n.dropped = n.dropped + 1
        dropped[#dropped + 1] = { r = c.request, n = #c.request.ids, steps = engine:metrics().steps }
      end
    end
    return drop(self, job)
  end
  function s.turn(self)
    n.turns = n.turns + 1
    if n.turns % 40 == 0 then
      n.swaps = n.swaps + 1
      s.engine_model:set_policy(policies[n.swaps % #policies + 1])
    end
    turn(self)
    local steps = dropped[1] and engine:metrics().steps
    for i = #dropped, 1, -1 do
      local d = dropped[i]
      if #d.r.ids > d.n or not d.r.finish and steps - d.steps > 1 then n.late = n.late + 1 end
      if d.r.finish then table.remove(dropped, i) end
    end
  end
  local stats
  function s.http.close(self)
    stats = self:stats()
    return close(self)
  end
  write(dir .. "/port", tostring(s.http.port))
  local code = s:run()
  engine:settle()
  n.metrics, n.http, n.code, n.jobs, n.requests = engine:metrics(), stats, code, s:open_jobs(), 0
  for _ in pairs(engine.requests) do n.requests = n.requests + 1 end
  write(dir .. "/final", cjson.encode(n))
  s.engine_model:close()
  os.exit(code)
end
if os.getenv "PL_SOAK_DIR" then serve(os.getenv "PL_SOAK_DIR") end

-- Clients ------------------------------------------------------------------------------------------------------

local client = dofile "tests/http_client.lua"
ffi.cdef "int setsockopt(int, int, int, const void *, unsigned);"
local C = ffi.C
local seconds, seed = tonumber(os.getenv "PL_SOAK_SECONDS" or 15), tonumber(os.getenv "PL_SEED" or os.time())
math.randomseed(seed)
io.stdout:setvbuf "line"
local random = math.random
local now = require("pl.abi").C.pl_now_s
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

local base64 = require("pl.embeddings").base64
-- what may be asked, with the texts and the embedding that the model gives when it is asked nothing else
local asks = {}
do
  local m = pl.load(tiny, { batch = 1, context = CONTEXT, prefix = false })
  local stories = {}
  for i = 1, 4 do stories[i] = ("story %d of the %dth kind; "):format(i, i * 37):rep(6 + i) end
  for i = 1, 48 do
    local a = { prompt = (i % 3 == 0 and stories[i / 3 % 4 + 1] or "") .. "client " .. i, max_tokens = 3 + i * 7 % 40,
      temperature = i % 2 == 0 and 0 or 0.9, seed = i, n = i % 8 == 1 and 2 or 1 }
    a.texts = {}
    for k = 1, a.n do
      a.texts[k] = m:generate({ prompt = a.prompt, max_tokens = a.max_tokens, temperature = a.temperature,
        seed = a.seed + k - 1 }).text
    end
    local vector = m:embed(a.prompt)
    a.vector = base64(ffi.string(ffi.cast("const char *", vector.data), tonumber(vector.dim[0]) * 4))
    asks[i] = a
  end
  m:close()
end

local count = {} -- what came of it all
local function tell(what) count[what] = (count[what] or 0) + 1 end
local keys, draining = { now = 10 }, false
local function key(g) return ("soak-key-%06d"):format(g) end
local port, pid

-- A client waits for its socket, or for a time; the loop below wakes it.
local function pause(s) coroutine.yield(nil, now() + s) end
local Conn = {}
Conn.__index = Conn
local buffer = ffi.new "char[65536]"
local function dial(small)
  local c = client.dial(port)
  if not c then return nil end
  if small then C.setsockopt(c.fd, 1, 8, ffi.new("int[1]", 2048), 4) end
  return setmetatable({ fd = c.fd, held = "", most = 65536 }, Conn)
end
function Conn:close(reset)
  if reset then C.setsockopt(self.fd, 1, 13, ffi.new("int[2]", 1, 0), 8) end
  C.close(self.fd)
end
function Conn:send(s) return C.send(self.fd, s, #s, 0x4000) == #s end
function Conn:more()
  if not coroutine.yield(self.fd, now() + 600) then return false end
  if self.slow then pause(self.slow * random()) end
  local n = tonumber(C.recv(self.fd, buffer, self.most, 0x40))
  if n <= 0 then return false end
  self.held = self.held .. ffi.string(buffer, n)
  return true
end
function Conn:take(n)
  while #self.held < n do if not self:more() then return nil end end
  local s = self.held:sub(1, n)
  self.held = self.held:sub(n + 1)
  return s
end
function Conn:until_(mark)
  while true do
    local _, b = self.held:find(mark, 1, true)
    if b then return self:take(b) end
    if not self:more() then return nil end
  end
end
-- status and body; nil: closed before an answer; false: within one
function Conn:answer()
  local head
  repeat
    head = self:until_ "\r\n\r\n"
    if not head then
      if self.held ~= "" then return false end
      return nil
    end
  until not head:find "^HTTP/1.1 100"
  local status = tonumber(head:match "^HTTP/1.1 (%d%d%d) ")
  self.closes = head:lower():find("connection: close", 1, true) ~= nil
  local length = tonumber(head:match "\r\n[Cc]ontent%-[Ll]ength: (%d+)")
  if not status then return false end
  if length then
    local body = self:take(length)
    if not body then return false end
    return status, body
  end
  local parts = {}
  while true do
    local line = self:until_ "\r\n"
    local n = line and tonumber(line:match "^(%x+)", 16)
    local s = n and self:take(n + 2)
    if not s then return false end
    if n == 0 then return status, table.concat(parts) end
    parts[#parts + 1] = s:sub(1, n)
  end
end

local function request(body, g, path)
  return ("POST %s HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"
    .. "Content-Length: %d\r\n\r\n%s"):format(path or "/v1/completions", key(g or keys.now), #body, body)
end
local function body_of(a, streams, more)
  local t = { prompt = a.prompt, max_tokens = a.max_tokens, temperature = a.temperature, seed = a.seed, n = a.n,
    stream = streams }
  for k, v in pairs(more or {}) do t[k] = v end
  return cjson.encode(t)
end

-- Is it the answer that the request gets alone?
local function right(a, streams, body)
  if a.right then return a.right(body) end
  local texts, done = {}, not streams
  for k = 1, a.n do texts[k] = "" end
  local function add(t)
    for _, c in ipairs(t.choices or {}) do texts[c.index + 1] = texts[c.index + 1] .. c.text end
  end
  if streams then
    for data in body:gmatch "data: ([^\n]*)\n\n" do
      if data == "[DONE]" then done = true else add(cjson.decode(data)) end
    end
  else
    add(cjson.decode(body))
  end
  for k = 1, a.n do done = done and texts[k] == a.texts[k] end
  return done
end

-- An answer is complete and right, or a refusal that this load may earn. May the connection go on?
local function judge(c, a, streams, g, what)
  local status, body = c:answer()
  if status == 200 then
    local ok = right(a, streams, body)
    if not ok then print(("FAIL %s: %s ... is not %q"):format(what, body:sub(1, 400), a.texts[1])) end
    tell(ok and what or "wrong")
  elseif status == 429 then
    tell "overload"
  elseif status == 401 and keys.now > g then
    tell "rotated"
  elseif (status == nil or status == 503) and draining then
    tell "drained"
  else
    tell "failed"
    print(("FAIL %s: %s %s"):format(what, tostring(status), (body or c.held):sub(1, 200)))
  end
  return status ~= nil and status ~= false and not c.closes
end

local function any() return asks[random(#asks)] end
local function ask(c, a, streams)
  local g = keys.now
  c:send(request(body_of(a, streams), g))
  return g
end
local kinds = {}
function kinds.kept() -- a few requests on one connection
  local c = dial()
  if not c then return end
  for _ = 1, random(4) do
    local a, streams = any(), random(2) == 1
    local g = ask(c, a, streams)
    if not judge(c, a, streams, g, "kept") then break end
    if random(3) == 1 then pause(0.05 * random()) end
    if draining then break end -- an idle connection is closed then, whatever is on its way
  end
  c:close()
end
function kinds.embeds() -- lists of all lengths; some do not wait for the answer
  local c, list, inputs, g = dial(), {}, {}, keys.now
  if not c then return end
  for i = 1, random(2) == 1 and random(3) or random(20) do
    list[i] = any()
    inputs[i] = list[i].prompt
  end
  c:send(request(cjson.encode { input = inputs, encoding_format = "base64" }, g, "/v1/embeddings"))
  if random(4) == 1 then
    pause(0.05 * random())
    tell "gone"
  else
    judge(c, { texts = { "the embeddings" }, right = function(body)
      local t = cjson.decode(body)
      for i, a in ipairs(list) do
        if t.data[i].embedding ~= a.vector or t.data[i].index ~= i - 1 then return false end
      end
      return #t.data == #list
    end }, false, g, "embeds")
  end
  c:close()
end
function kinds.slow()
  local c = dial(true)
  if not c then return end
  c.most, c.slow = 200, 0.01
  local a = any()
  judge(c, a, true, ask(c, a, true), "slow")
  c:close()
end
function kinds.half()
  local c = dial()
  if not c then return end
  local a, streams = any(), random(2) == 1
  local g = ask(c, a, streams)
  if random(2) == 1 then pause(0.02 * random()) end
  client.shut(c.fd)
  judge(c, a, streams, g, "half-closed")
  c:close()
end
function kinds.pieces()
  local c = dial()
  if not c then return end
  local a, g, at = any(), keys.now, 1
  local text = request(body_of(a, false), g)
  while at <= #text do
    local n = random(math.ceil(#text / 4))
    if not c:send(text:sub(at, at + n - 1)) then break end
    at = at + n
    pause(0.02 * random())
  end
  judge(c, a, false, g, "pieces")
  c:close()
end
function kinds.pipelined()
  local c, all, list, g = dial(), {}, {}, keys.now
  if not c then return end
  for i = 1, random(2, 4) do
    list[i] = any()
    all[i] = request(body_of(list[i], i % 2 == 0), g)
  end
  c:send(table.concat(all))
  for i, a in ipairs(list) do
    if not judge(c, a, i % 2 == 0, g, "pipelined") then break end
  end
  c:close()
end
function kinds.gone() -- at any point, with a FIN or a RST
  local c = dial()
  if not c then return end
  local a, streams = any(), random(3) > 1
  local text = request(body_of(a, streams, { max_tokens = 300, ignore_eos = true }))
  local where = random(4)
  if where == 1 then text = text:sub(1, random(#text - 1)) end
  c:send(text)
  if where == 2 then pause(0.05 * random()) end
  if where > 2 and streams and c:until_ "\r\n\r\n" then
    for _ = 1, random(0, 12) do if not c:until_ "data: " then break end end
  end
  c:close(random(2) == 1)
  tell "gone"
end
function kinds.stuck() -- asks for a lot and reads nothing
  local c = dial(true)
  if not c then return end
  c:send(request(body_of(any(), true, { n = 2, max_tokens = 400, ignore_eos = true, logprobs = 20 })))
  pause(1 + 3 * random())
  c:close(random(2) == 1)
  tell "stuck"
end
local garbage = { "GET / HTTP/9\r\n\r\n", "\0\1\2\3\r\n\r\n",
  "POST /v1/completions HTTP/1.1\r\nHost: t\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
  "GET /x HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n" }
function kinds.bad()
  local c, what = dial(), random(4)
  if not c then return end
  local want
  if what == 1 then
    c:send(request('{"prompt":"a"}', random(2) == 1 and keys.now - 3 or 999999))
    want = "401"
  elseif what == 2 then
    c:send(request(('{"prompt":%s'):format(("["):rep(random(3000)))))
    want = "400"
  else
    c:send(garbage[random(#garbage)])
  end
  local status = c:answer()
  local fine = not want and (status == nil or status and status >= 400) or want and tostring(status) == want
    or (status == nil or status == 503) and draining or status == 401 and want == "400"
  if not fine then print(("FAIL bad %d: %s"):format(what, tostring(status))) end
  tell(fine and "bad" or "failed")
  c:close()
end
function client.shut(fd) C.shutdown(fd, 1) end
local names = { "kept", "kept", "kept", "slow", "half", "half", "pieces", "pipelined", "gone", "gone", "gone", "stuck",
  "bad", "embeds", "embeds" }

-- The loop: wakes whoever can go on. until_: new ones are begun until then.
local N = 64
local polls = ffi.new("struct test_poll[?]", N)
local function crowd(until_, each_second)
  local list, told = {}, 0
  while true do
    local t = now()
    for i = 1, N do
      if not list[i] and t < until_() then
        local w = { co = coroutine.create(kinds[names[random(#names)]]) }
        list[i] = w
      end
    end
    local n, first, asked = 0, t + 0.25, {}
    for i = 1, N do
      local w = list[i]
      if w then
        if not w.wake or w.wake <= t then
          first = t
        else
          first = math.min(first, w.wake)
        end
        if w.fd then
          polls[n].fd, polls[n].events, polls[n].revents = w.fd, 1, 0
          asked[n] = w
          n = n + 1
        end
      end
    end
    if n == 0 and next(list) == nil and t >= until_() then break end
    C.poll(polls, n, math.max(0, math.ceil((first - t) * 1e3)))
    for k = 0, n - 1 do
      local w = asked[k]
      w.ready = polls[k].revents ~= 0
    end
    t = now()
    for i = 1, N do
      local w = list[i]
      if w and (w.ready or not w.wake or w.wake <= t) then
        local ready = w.ready or false
        w.ready = false
        local ok, fd, wake = coroutine.resume(w.co, ready)
        if not ok then verdict(false, tostring(fd) .. "\n" .. debug.traceback(w.co)) end
        w.fd, w.wake = fd, wake
        if not ok or coroutine.status(w.co) == "dead" then list[i] = nil end
      end
    end
    if t - told > 1 then
      told = t
      each_second(t)
    end
  end
end

-- The run ------------------------------------------------------------------------------------------------------

local dir = os.tmpname()
os.remove(dir)
assert(os.execute("mkdir " .. dir) == 0)
local function read(path)
  local f = io.open(path)
  local s = f and f:read "*a" or ""
  if f then f:close() end
  return s
end
local function rotate(g) write(dir .. "/keys", ("%s alice\n%s bob\n"):format(key(g), key(g - 1))) end
rotate(keys.now)
-- its messages of failing policies are expected
os.execute(("(PL_SOAK_DIR=%s %s/pl-lua tests/lua/serve_load.lua >%s/out 2>&1 & p=$!; echo $p >%s/pid; wait $p; "
  .. "echo $? >%s/code) >/dev/null 2>&1 &"):format(dir, os.getenv "PL_BUILD" or "build", dir, dir, dir))
for _ = 1, 1200 do
  port = tonumber(read(dir .. "/port"))
  if port or read(dir .. "/code") ~= "" then break end
  client.sleep(0.05)
end
pid = tonumber(read(dir .. "/pid"))
local guard = ffi.gc(ffi.new "char[1]", function() C.kill(pid, 9) end)
assert(port, "the server did not start: " .. read(dir .. "/out"))
local function files()
  local p = io.popen(("ls /proc/%d/fd | wc -l"):format(pid))
  local n = p:read "*n"
  p:close()
  return n
end
local function rss() return tonumber(read(("/proc/%d/status"):format(pid)):match "VmRSS:%s+(%d+)") / 1024 end
local function metrics()
  local _, text = client.call(port, "GET", "/metrics", nil, ("Authorization: Bearer %s\r\n"):format(key(keys.now)))
  local t = {}
  for name, v in text:gmatch "perilune_([%w_]+){?[^%s]* ([%d.e+-]+)\n" do t[name] = tonumber(v) end
  return t
end

local began, next_key, next_use = now(), now() + 1, math.huge
local base_files, early, late, most_files, g = files(), 0, 0, 0, keys.now
local ends = began + seconds
local function each_second(t)
  local part = (t - began) / seconds
  if part > 0.2 and part < 0.5 then early = math.max(early, rss()) end
  if part > 0.7 then late = math.max(late, rss()) end
  most_files = math.max(most_files, files())
  if t > next_use then keys.now, next_use = g, math.huge end
  if t > next_key then
    g = g + 1
    rotate(g)
    C.kill(pid, 1)
    next_use, next_key = t + 1.2, t + 3.5
  end
end
crowd(function() return ends end, each_second)

-- quiet: nothing is left of it
local m
for _ = 1, 400 do
  m = metrics()
  if m.requests_running + m.requests_waiting + m.requests_tokenising == 0 and m.http_connections <= 1
    and m.pages_owned == m.pages_idle and m.pages_quarantined == 0 then break end
  client.sleep(0.05)
end
verdict(m.requests_running + m.requests_waiting + m.requests_tokenising == 0, "no request is left")
verdict(m.pages_owned == m.pages_idle and m.pages_quarantined == 0 and m.pages_free + m.pages_idle == 60,
  ("pages: %d free, %d owned, %d idle, %d quarantined"):format(m.pages_free, m.pages_owned, m.pages_idle,
    m.pages_quarantined))
client.sleep(0.3)
local files_after = files()
verdict(files_after == base_files, ("descriptors: %d at first, %d in the end"):format(base_files, files_after))
local sanitized = (os.getenv "PL_SANITIZED" or "") ~= "" -- they keep what is freed
local most = seconds < 300 and 32 or 8 -- MB: a short run is still warming up
verdict(sanitized or late < early + most,
  ("memory: %.1f MB at most after a fifth of the time, %.1f MB near the end"):format(early, late))

-- drain, under load
local term = now() + 2
crowd(function() return draining and 0 or term + 1 end, function(t)
  if t > term and not draining then
    draining = true
    C.kill(pid, 15)
  end
end)
for _ = 1, 1300 do
  if read(dir .. "/code") ~= "" then break end
  client.sleep(0.05)
end
local code = tonumber(read(dir .. "/code"))
if code then ffi.gc(guard, nil) end
verdict(code == 0, "exit code after a drain: " .. tostring(code) .. "\n" .. read(dir .. "/out"):sub(-500))
local final = cjson.decode(read(dir .. "/final"))
local f = final.metrics
verdict(final.late == 0, final.late .. " aborted requests did not end within one step")
verdict(f.pages.owned == f.idle_pages and f.pages.quarantined == 0 and f.n_running + f.n_waiting == 0,
  "pages at the end")
verdict(final.requests == 0 and final.jobs == 0 and final.http.n_open == 0, "nothing is open at the end")
verdict(f.tier_host_damaged + f.tier_disk_damaged + f.tier_disk_errors + f.mismatches + f.damaged_pages == 0,
  "what comes back from a tier is what went")
verdict((count.wrong or 0) == 0 and (count.failed or 0) == 0, "answers that are wrong, or no answers")
local told = {}
for k, v in pairs(count) do told[#told + 1] = ("%s %d"):format(k, v) end
table.sort(told)
local line = ("seed %d, %d s: %s; %d steps, %d aborted, %d policies, %d keys, %d policy failures, %d preempted, "
  .. "%d slow clients given up, %d pages back from tiers; %d descriptors at most, memory %.1f -> %.1f MB"):format(seed,
  seconds, table.concat(told, ", "), f.steps, final.dropped, final.swaps, g - 9, f.policy_failures, f.preempted,
  final.http.slow + final.http.timeouts, f.tier_host_hits + f.tier_disk_hits, most_files, early, late)
print(line)
for _, k in ipairs { "kept", "slow", "half-closed", "pieces", "pipelined", "gone", "stuck", "bad", "embeds" } do
  verdict((count[k] or 0) > 0, "none of the clients was " .. k)
end
verdict(final.dropped > 0 and final.swaps > 3 and f.policy_failures > 0 and g > 11 and final.http.slow
  + final.http.timeouts > 0, "all of it happened: " .. line)
os.execute("rm -rf " .. dir)

verdicts.done()
