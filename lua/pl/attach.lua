-- `perilune attach`, the server's side: texts come in over a Unix socket and are run between two steps, in a sandbox of
-- the engine's state and under a small budget. A connection reads unless it has declared that it writes; what a text
-- wants changed is noted while it runs and done afterwards, so that a budget that is hit never leaves half a change.
-- One line of JSON each way: { "write": bool } first, then { "eval": text, "json": bool }: { ok, text, value, error }.
local abi, err, json, sandbox = require "pl.abi", require "pl.err", require "pl.json", require "pl.sandbox"
local policy = require "pl.policy"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

M.limits = { instructions = 1e6, seconds = 0.1, megabytes = 16 }
local POLICY_LIMITS = { instructions = 1e6, seconds = 0.1, megabytes = 16 }
local MAX_CONNECTIONS, MAX_LINE, MAX_TEXT, MAX_VALUES, MAX_DEPTH = 32, 2 ^ 20, 2 ^ 18, 20000, 6
local LINGER_S = 5 -- for a client that sends no more to read its answers

-- Values as data -------------------------------------------------------------------------------------------

-- A value without functions, metatables and what is too deep or too much of it.
local function plain(v, left, depth)
  local t = type(v)
  left.n = left.n - 1
  if t == "boolean" or t == "number" or t == "nil" then return v end
  if t == "string" then
    left.bytes = left.bytes - #v
    if left.bytes < 0 then return "..." end
    return v
  end
  if err.is(v) then return plain(tostring(v), left, depth) end
  if t == "cdata" then return (tostring(v):gsub("U?LL$", "")) end
  if t ~= "table" then return "<" .. t .. ">" end
  if depth == MAX_DEPTH or left.n <= 0 then return "..." end
  local n, out, is_list = #v, {}, true
  for key in next, v do
    if type(key) ~= "number" or key % 1 ~= 0 or key < 1 or key > n then
      is_list = false
      break
    end
  end
  local count = 0
  for key, x in next, v do
    if left.n <= 0 or left.bytes < 0 then break end
    count = count + 1
    local shown = key
    if not is_list then -- a table's own __tostring would run without a budget
      shown = type(key) == "table" and "<table>" or tostring(key):sub(1, 200)
    end
    out[shown] = plain(x, left, depth + 1)
  end
  if not is_list then return out end
  local list = {}
  for i = 1, n do
    if out[i] == nil then break end
    list[i] = out[i]
  end
  return json.list(list)
end

local first = { "id", "name", "tenant", "state", "page", "owner", "tag" } -- columns that come first
local rank = {}
for i, name in ipairs(first) do rank[name] = i end
local function in_order(names)
  table.sort(names, function(a, b)
    local x, y = rank[a] or 99, rank[b] or 99
    if x ~= y then return x < y end
    return a < b
  end)
  return names
end

local function short(v)
  if type(v) == "number" then return v % 1 == 0 and ("%.0f"):format(v) or ("%.4g"):format(v) end
  if type(v) ~= "table" then return tostring(v) end
  local out = {}
  for _, x in ipairs(v) do out[#out + 1] = short(x) end
  for _, key in ipairs(in_order(err.names(v))) do out[#out + 1] = key .. "=" .. short(v[key]) end
  return "{" .. table.concat(out, " ") .. "}"
end

-- A list of tables as columns.
local function columns(list)
  local seen, names, width = {}, {}, {}
  for _, row in ipairs(list) do
    for _, key in ipairs(err.names(row)) do
      if not seen[key] then names[#names + 1], seen[key] = key, true end
    end
  end
  in_order(names)
  local rows = { names }
  for _, row in ipairs(list) do
    local cells = {}
    for i, key in ipairs(names) do cells[i] = row[key] == nil and "" or short(row[key]) end
    rows[#rows + 1] = cells
  end
  for _, cells in ipairs(rows) do
    for i, cell in ipairs(cells) do width[i] = math.max(width[i] or 0, #cell) end
  end
  local out = {}
  for _, cells in ipairs(rows) do
    local line = {}
    for i, cell in ipairs(cells) do line[i] = cell .. (" "):rep(width[i] - #cell) end
    out[#out + 1] = (table.concat(line, "  "):gsub("%s+$", ""))
  end
  return table.concat(out, "\n")
end

local function text_of(v)
  if type(v) ~= "table" then return tostring(v) end
  if #v > 0 then
    for _, row in ipairs(v) do if type(row) ~= "table" or #row > 0 then return short(v) end end
    return columns(v)
  end
  local names, out = in_order(err.names(v)), {}
  if #names == 0 then return "none" end
  for _, key in ipairs(names) do out[#out + 1] = ("%-20s %s"):format(key, short(v[key])) end
  return table.concat(out, "\n")
end

-- What can be asked ----------------------------------------------------------------------------------------

local states = { [0] = "waiting", "running", "finished", "unused", "tokenising" }
local page_states = { [0] = "free", "owned", "quarantined" }
local function tag_text(tag) return (tostring(tag):gsub("ULL", "")) end

local function requests(s)
  local engine, out, names = s.engine_model.engine, {}, {}
  for _, job in pairs(s.jobs) do
    for _, choice in ipairs(job.choices) do
      if choice.request then names[tonumber(choice.request.id)] = job.name end
    end
  end
  local i, list = 0, abi.new "const int32_t *[1]"
  local now = C.pl_engine_now(engine.ptr)
  while true do
    local r = C.pl_engine_request_at(engine.ptr, i)
    if r == nil then break end
    if r.state ~= C.PL_UNUSED and r.state ~= C.PL_FINISHED then
      local id = tonumber(r.id)
      out[#out + 1] = { id = id, name = names[id], tenant = s.tenant_names[r.tenant] or tostring(r.tenant),
        state = states[r.state], prompt = r.n_prompt, done = r.n_done, out = r.n_out, max_out = r.max_out,
        pages = r.state == C.PL_RUNNING and C.pl_kv_seq_pages(engine.kv, r.seq, list) or 0,
        cached = r.n_cached, preempted = r.n_preempted, age_s = now - r.arrived_s }
    end
    i = i + 1
  end
  table.sort(out, function(a, b) return a.id < b.id end)
  return out
end

-- Rows of pages that are not free; or of `n` pages from `from` on, whatever they are.
local function pages(s, from, n)
  local kv, out, info = s.engine_model.engine.kv, {}, abi.new "pl_page_info"
  local page, last = from or 0, from and from + (n or 64) or 2 ^ 31
  while page < last and #out < 2000 and C.pl_kv_page_at(kv, page, info) >= 0 do
    if from or info.state ~= 0 then
      local owners = {}
      for k = 0, C.PL_PAGE_HISTORY - 1 do
        if info.past[k].tag ~= 0 then owners[#owners + 1] = tonumber(info.past[k].owner) end
      end
      out[#out + 1] = { page = page, state = page_states[info.state], tag = tag_text(info.tag), refs = info.refs,
        cached = info.cached, damaged = info.damaged, owner = owners[1] or 0, owners = json.list(owners),
        copies = info.readers + info.writers }
    end
    page = page + 1
  end
  return out
end

local function whole(what, v, least)
  if type(v) ~= "number" or v % 1 ~= 0 or v < least or v > 2 ^ 53 then
    err.raise(("%s: %s, want a whole number of at least %d"):format(what, tostring(v), least))
  end
  return v
end

-- The environment of a text: what it may ask, and what it may have changed, which is noted in run.wishes.
local function environment(s, box, run)
  local env = {}
  for key, v in next, box.env do env[key] = v end
  env.require = nil
  function env.print(...)
    local parts = {}
    for i = 1, select("#", ...) do parts[i] = tostring((select(i, ...))):sub(1, 4096) end
    if #run.printed < 200 then run.printed[#run.printed + 1] = table.concat(parts, "\t") end
  end
  function env.requests() return requests(s) end
  function env.pages(from, n) return pages(s, from and whole("pages", from, 0), n and whole("pages", n, 1)) end
  function env.metrics() return s.engine_model:metrics() end
  function env.http() return s.http:stats() end
  function env.incidents() return s.engine_model:incidents() end
  function env.prof()
    local t = s.engine_model:prof()
    local f = t:summary()
    for _, row in ipairs(f.parts) do row.share = math.floor(row.share * 1000 + 0.5) / 10 end
    return f.parts
  end
  function env.policy()
    local c = s.engine_model.engine.policy_counter
    return { name = s.engine_model.engine.policy_name, failures = c.failures, off = c.off, why = c.why }
  end
  function env.server()
    return { model = s.model.name, version = abi.version(), port = s.http.port, context = s.engine_model.context,
      batch = s.engine_model.pool.batch, kv = s.engine_model.pool.kv, paused = s.paused == true,
      draining = s.draining == true, file = s.o.file, uptime_s = os.time() - s.started }
  end
  local function wish(name, f)
    env[name] = function(...)
      if not run.active then err.raise(name .. ": not within a policy") end
      if not run.write then err.raise(name .. ": this connection only reads, want `perilune attach --write`") end
      if #run.wishes == 16 then err.raise(name .. ": more than 16 changes in a text") end
      run.wishes[#run.wishes + 1] = f(...)
    end
  end
  wish("set_policy", function(p)
    local engine = s.engine_model.engine
    if type(p) == "function" then
      return function()
        engine:take_policy(p, box, "a function")
        s.attached = true
        return "policy: a function"
      end
    end
    if type(p) ~= "string" then err.raise "set_policy: want a name, a file, a text or a function(s)" end
    return function()
      local is_text = p:find "\n" or p:find "^%s*return%f[%W]"
      local f, own = (is_text and policy.load_text or policy.load)(p, is_text and "attached" or POLICY_LIMITS,
        is_text and POLICY_LIMITS or nil)
      engine:take_policy(f, own, is_text and "attached" or p)
      s.attached = true
      return "policy: " .. engine.policy_name
    end
  end)
  wish("pause", function() return function() s.paused = true return "paused" end end)
  wish("resume", function() return function() s.paused = false return "resumed" end end)
  wish("drain", function() return function() s.wants_drain = true return "draining" end end)
  wish("trace", function(n) whole("trace", n, 0) return function()
    s.engine_model:prof { steps = math.min(n, 10000) }
    return ("the last %d steps are kept"):format(n)
  end end)
  wish("reload", function() return function() return table.concat(s:reload(), "\n") end end)
  wish("cancel", function(id)
    whole("cancel", id, 0)
    return function()
      local r = s.engine_model.engine.requests[id]
      if not r then error(err.new(("cancel: no request %d"):format(id)), 0) end
      s.engine_model.engine:cancel(r)
      return ("cancelled %d"):format(id)
    end
  end)
  env._G = env
  local names = err.names(env)
  return setmetatable({}, { __metatable = false,
    __index = function(_, key)
      if env[key] == nil then err.unknown("attach", tostring(key), names) end
      return env[key]
    end,
    __newindex = function(_, key)
      err.raise(("each text stands alone: make '%s' local"):format(tostring(key)))
    end })
end

M.HELP = [[
requests()  pages([from, n])  metrics()  http()  prof()  incidents()  policy()  server()
with --write: set_policy(NAME|FILE|TEXT|function)  trace(steps)  pause()  resume()  drain()  cancel(id)  reload()
Each text stands alone, and runs between two steps: 1e6 instructions, 0.1 s, 16 MB.]]

--- Runs a text: { ok, text or value, error }.
function M.run(s, o, write)
  local box, run = sandbox.new({}, M.limits), { write = write, wishes = {}, printed = {}, active = true }
  box.what = "text"
  box.env = environment(s, box, run)
  local values
  local ok, problem = pcall(function()
    local fine, f = pcall(box.load, box, "return " .. o.eval, "attach")
    if not fine then f = box:load(o.eval, "attach") end
    values = { n = 0 }
    local function keep(...) values = { n = select("#", ...), ... } end
    keep(box:once(f))
  end)
  run.active = false
  if not ok then return { ok = false, error = tostring(problem):sub(1, 4096) } end
  local done = {}
  for _, act in ipairs(run.wishes) do
    local fine, what = pcall(act)
    if not fine then return { ok = false, error = tostring(what):sub(1, 4096) } end
    done[#done + 1] = what
    s.log("attach: " .. what)
  end
  local left = { n = MAX_VALUES, bytes = MAX_TEXT }
  if values.n > 0 and not (values.n == 1 and values[1] == nil) then
    for i = 1, math.min(values.n, 16) do values[i] = plain(values[i], left, 1) end
  else
    values.n = 0
  end
  if o.json then
    local v = values[1]
    if values.n == 0 then v = #done > 0 and json.list(done) or json.null end
    if v == nil then v = json.null end
    return { ok = true, value = v }
  end
  local out = run.printed
  for i = 1, math.min(values.n, 16) do out[#out + 1] = text_of(values[i]) end
  for _, what in ipairs(done) do out[#out + 1] = what end
  local text = err.printable(table.concat(out, "\n"))
  if #text > MAX_TEXT then text = text:sub(1, MAX_TEXT) .. "\n..." end
  return { ok = true, text = text }
end

-- Connections ----------------------------------------------------------------------------------------------

local Attach = {}
Attach.__index = Attach

--- Listens for the server s. Raises where the path cannot be used.
function M.open(s, path)
  local fd = abi.new "int32_t[1]"
  check(C.pl_sock_listen(fd, path, e), { "the socket of `perilune attach`; --socket names another path, or none" })
  local self = setmetatable({ server = s, path = path, fd = fd[0], conns = {}, n = 0,
    groups = abi.new("int32_t[1]", { -1 }), buffer = abi.new("char[?]", 65536) }, Attach)
  check(C.pl_sock_watch(self.groups, self.fd, true, e))
  local front = s.engine_model.engine.front
  if front and front.fd >= 0 then check(C.pl_sock_watch(self.groups, front.fd, true, e)) end
  self.group = self.groups[0] -- what the server's loop sleeps on
  return self
end

function Attach:drop(c)
  C.pl_sock_close(c.fd)
  self.conns[c.fd] = nil
  self.n = self.n - 1
end

local function put(c, t) c.out = c.out .. json.encode(t) .. "\n" end

function Attach:accept()
  while true do
    local fd = C.pl_sock_accept(self.fd)
    if fd < 0 then return end
    if self.n == MAX_CONNECTIONS then
      local text = json.encode { ok = false, error = ("%d connections, want fewer"):format(self.n) } .. "\n"
      C.pl_sock_write(fd, text, #text)
      C.pl_sock_close(fd)
    else
      self.conns[fd], self.n = { fd = fd, held = "", out = "" }, self.n + 1
      check(C.pl_sock_watch(self.groups, fd, true, e))
    end
  end
end

-- What has come; a client that sends more than a line ahead of its answers is given up.
function Attach:read(c)
  if c.ends_s then return end
  while true do
    local n = tonumber(C.pl_sock_read(c.fd, self.buffer, 65536))
    if n == C.PL_EBUSY then return end
    if n < 0 then
      check(C.pl_sock_watch(self.groups, c.fd, false, e))
      c.ends_s = C.pl_now_s() + LINGER_S
      return
    end
    c.held = c.held .. abi.string(self.buffer, n)
    if #c.held > MAX_LINE then
      put(c, { ok = false, error = ("a line of more than %d bytes"):format(MAX_LINE) })
      c.held, c.over = "", true
      return
    end
  end
end

function Attach:answer(c, line)
  local fine, t = pcall(function()
    if C.pl_json_check(line, #line, 8, 64, e) < 0 then err.raise(abi.string(e.msg)) end
    return json.decode(line)
  end)
  if not fine or type(t) ~= "table" then
    put(c, { ok = false, error = "want a JSON object a line" })
    c.over = true
  elseif c.write == nil then
    c.write = t.write == true
    put(c, { ok = true, write = c.write, model = self.server.model.name, version = abi.version(), help = M.HELP })
  elseif type(t.eval) ~= "string" then
    put(c, { ok = false, error = "want { eval = TEXT }" })
  else
    local ok, r = pcall(M.run, self.server, t, c.write)
    put(c, ok and r or { ok = false, error = tostring(r) })
  end
end

function Attach:flush(c)
  while c.out ~= "" do
    local n = tonumber(C.pl_sock_write(c.fd, c.out, #c.out))
    if n == C.PL_EBUSY then return true end
    if n < 0 then return false end
    c.out = c.out:sub(n + 1)
  end
  return true
end

--- Between two steps: what has come is read, and one text is run. True: more wait.
function Attach:turn()
  self:accept()
  local busy, list, now = false, {}, C.pl_now_s()
  for _, c in pairs(self.conns) do list[#list + 1] = c end
  table.sort(list, function(a, b) return (a.last or 0) < (b.last or 0) end) -- each in its turn
  local ran = false
  for _, c in ipairs(list) do
    self:read(c)
    local stop = c.held:find("\n", 1, true)
    if stop and c.out == "" and not c.over then
      if ran then
        busy = true
      else
        local line = c.held:sub(1, stop - 1)
        c.held, c.last, ran = c.held:sub(stop + 1), now, true
        self:answer(c, line)
        busy = busy or c.held:find("\n", 1, true) ~= nil
      end
    end
    local alive = self:flush(c)
    local done = c.out == "" and (c.over or c.ends_s and not c.held:find("\n", 1, true))
    if not alive or done or c.ends_s and now > c.ends_s then self:drop(c) end
  end
  return busy
end

function Attach:close()
  for _, c in pairs(self.conns) do
    self:flush(c)
    C.pl_sock_close(c.fd)
  end
  C.pl_sock_close(self.fd)
  C.pl_sock_close(self.group)
  os.remove(self.path)
end

-- Where it lies --------------------------------------------------------------------------------------------

--- The path of a server's socket: in the user's own directory, or beside the deployment file (dir).
function M.path(port, dir)
  local where = os.getenv "XDG_RUNTIME_DIR"
  if not where or where == "" then where = dir or os.getenv "TMPDIR" or "/tmp" end
  return ("%s/perilune-%d.sock"):format((where:gsub("/+$", "")), port)
end

--- Does a server listen at this path?
function M.is_live(path)
  local fd = abi.new "int32_t[1]"
  local rc = C.pl_sock_connect(fd, path, e)
  if rc >= 0 then C.pl_sock_close(fd[0]) end
  return rc >= 0
end

local MAX_ANSWER, PATIENCE_S = 2 ^ 23, 10

--- A connection to a server's socket: { hello, call(text, json), close() }. told(text), if given, hears of a server
--- that takes long to answer.
function M.connect(path, write, told)
  local fd, hello = abi.new "int32_t[1]", nil
  local function fail(why) error(err.new(("attach: %s: %s"):format(path, why)), 0) end
  local function stranger() fail "no perilune listens there, want the path that the server prints" end
  local function wait(on, seconds)
    if C.pl_host_wait(on, seconds) == C.PL_ECANCEL then err.raise("interrupted", nil, "ECANCEL") end
  end
  if C.pl_sock_connect(fd, path, e) < 0 then fail(abi.string(e.msg)) end
  local buffer, held = abi.new("char[?]", 65536), ""
  local function ask(t)
    local text, since, silent = json.encode(t) .. "\n", C.pl_now_s(), told
    while text ~= "" do
      local n = tonumber(C.pl_sock_write(fd[0], text, #text))
      if n == C.PL_EBUSY then wait(-1, 0.01)
      elseif n < 0 then break -- its last words may say why
      else text = text:sub(n + 1) end
    end
    while true do
      local stop = held:find("\n", 1, true)
      if stop then
        local line = held:sub(1, stop - 1)
        held = held:sub(stop + 1)
        local ok, answer = pcall(json.decode, line)
        if not ok or type(answer) ~= "table" then stranger() end
        return answer
      end
      local n = tonumber(C.pl_sock_read(fd[0], buffer, 65536))
      if n > 0 then
        held = held .. abi.string(buffer, n)
        if #held > MAX_ANSWER then stranger() end
      elseif n == C.PL_EBUSY then
        wait(fd[0], 1)
        if silent and C.pl_now_s() - since > PATIENCE_S then
          silent(("attach: %s: no answer yet: a step takes long, or the server is stopped; Ctrl-C leaves"):format(path))
          silent = nil
        end
      elseif hello then
        fail "the server went away without an answer: see its log, and attach again when it runs"
      else
        fail "it was closed at once: the server is about to end, or no perilune"
      end
    end
  end
  local greeting = ask { write = write == true }
  if greeting.ok == false then fail("refused: " .. tostring(greeting.error)) end
  if type(greeting.model) ~= "string" or type(greeting.help) ~= "string" then stranger() end
  hello = greeting
  return { hello = hello, call = function(text, as_json) return ask { eval = text, json = as_json } end,
    close = function() C.pl_sock_close(fd[0]) end }
end

return M
