-- The server: HTTP requests in, the engine's steps, answers out, in one loop of one thread. The engine never waits for
-- a client; a client that has gone is cancelled before the next step. What is served is a table of data, see M.open.
local abi, err, json = require "pl.abi", require "pl.err", require "pl.json"
local http, openai, prometheus = require "pl.http", require "pl.openai", require "pl.prometheus"
local answers, embeddings = require "pl.answers", require "pl.embeddings"
local front, requests = require "pl.front", require "pl.requests"
local C = abi.C
local M = {}

local Server = {}
Server.__index = Server

local IDLE_S, PER_TURN, FLUSH_S, HURRY_S = 0.25, 64, 5, 0.002
local LITTER = 2 ^ 22 -- bytes of bodies and answers behind which an idle server cleans up
local RELOAD = { instructions = 1e6, seconds = 0.1, megabytes = 16 } -- of a policy's file, while others wait
local RETRY = "Retry-After: 1\n"

-- Routes ---------------------------------------------------------------------------------------------------

local routes = {} -- path -> method -> function(server, request)
local function route(method, path, f)
  routes[path] = routes[path] or {}
  routes[path][method] = f
end

local function card(s)
  return { id = s.model.name, object = "model", created = s.started, owned_by = "perilune",
    max_model_len = s.engine_model.context }
end
route("GET", "/v1/models", function(s, r) s.http:json(r.id, 200, { object = "list", data = json.list { card(s) } }) end)
route("GET", "/v1/models/*", function(s, r, name)
  if name ~= s.model.name then
    error(openai.refusal(("no model '%s', this server has '%s'"):format(err.printable(name):sub(1, 100), s.model.name),
      { status = 404, param = "model", code = "model_not_found" }), 0)
  end
  s.http:json(r.id, 200, card(s))
end)
route("GET", "/version", function(s, r) s.http:json(r.id, 200, { version = abi.version() }) end)
route("GET", "/health", function() err.raise "serve: /health is answered in core/http_conn.c" end)

route("GET", "/metrics", function(s, r)
  s.http:answer(r.id, 200, prometheus.text(s.engine_model.engine, s.http:stats(), s.model.name, s.o.vllm_names),
    "Content-Type: text/plain; version=0.0.4\n")
end)

-- Requests with a body are read beside the engine, in a front thread; small ones here, unless a template is to be
-- rendered, which may take its time.
local SMALL = 2048
for path, name in pairs { ["/v1/completions"] = "completion", ["/v1/chat/completions"] = "chat",
  ["/v1/embeddings"] = "embedding", ["/tokenize"] = "tokenize", ["/detokenize"] = "detokenize" } do
  local kind = requests.kinds[name]
  route("POST", path, function(s, r)
    local engine = s.engine_model.engine
    if not r.body then error(openai.refusal("no memory for the body", { status = 503 }), 0) end
    s.litter = s.litter + #r.body
    if engine.fronts == 0 or #r.body < SMALL and name ~= "chat" then return s:heard(r, s.reader:read(kind, r.body)) end
    if engine:room(r.tenant, s.n_asked, s.asked_of) < 1
      or not engine.front:ask(-r.id, front.kinds.request, kind, requests.letter(s.setup, r.body)) then
      error(openai.full(engine, r.tenant, s.n_asked, s.asked_of), 0)
    end
    s:asked(r, 1)
    r.body, s.reading[r.id], s.hurried = nil, r, false
  end)
end

-- "GET, HEAD, OPTIONS"
local function allowed(known)
  local out = err.names(known)
  if known.GET then out[#out + 1] = "HEAD" end
  out[#out + 1] = "OPTIONS"
  table.sort(out)
  return table.concat(out, ", ")
end

function Server:dispatch(r)
  local model = r.path:match "^/v1/models/(.+)$"
  local known = routes[model and "/v1/models/*" or r.path]
  if not known then
    local names = err.names(routes)
    table.sort(names)
    local near = err.closest(r.path, names)
    error(openai.refusal(("no path '%s', %s"):format(err.printable(r.path):sub(1, 200), near
      and ("did you mean '%s'?"):format(near) or "want one of " .. table.concat(names, " ")), { status = 404 }), 0)
  end
  local f = known[r.method == "HEAD" and "GET" or r.method] -- to HEAD the library sends no body
  if f then return f(self, r, model) end
  local may = allowed(known)
  if r.method == "OPTIONS" then return self.http:answer(r.id, 204, "", "Allow: " .. may .. "\n") end
  local what = ("%s %s: want one of %s"):format(r.method, r.path:sub(1, 200), may)
  error(openai.refusal(what, { status = 405, allow = may }), 0)
end

function Server:reply(id, status, text, headers)
  self.http:answer(id, status, text, "Content-Type: application/json\n" .. (headers or "")
    .. ((status == 429 or status == 503) and RETRY or ""))
end
function Server:refuse(id, refusal)
  self:reply(id, refusal.status, json.encode(openai.error_body(refusal)),
    refusal.allow and "Allow: " .. refusal.allow .. "\n" or nil)
end

-- What a body was found to ask, see pl.requests: options of an answer that is to be computed, or an answer.
function Server:heard(r, o, status, text)
  if o then self:submit(r, o) else self:reply(r.id, status, text) end
end

-- The same from a front thread. Its letters have the ids of requests with a minus: those of the engine have none.
function Server:read(letter)
  local r = self.reading[-tonumber(letter.id)]
  if not r then return end -- its client has gone
  self.reading[r.id] = nil
  self:asked(r, -1)
  self.litter = self.litter + tonumber(letter.n)
  self:guard(r, function()
    if letter.code < 0 then error(abi.string(letter.data, letter.n), 0) end
    if letter.code > 0 then return self:heard(r, nil, letter.code, abi.string(letter.data, letter.n)) end
    self:heard(r, requests.options(letter))
  end)
end

-- A request: its own mistakes are its answer.
function Server:take(r)
  if r.gone then
    local job = self.jobs[r.id]
    if job then self:drop(job) end
    if self.reading[r.id] then self:forget(r.id) end
    return
  end
  self:guard(r, self.dispatch, self, r)
end

-- How many bodies the front threads have.
function Server:asked(r, n)
  self.n_asked, self.asked_of[r.tenant] = self.n_asked + n, (self.asked_of[r.tenant] or 0) + n
end

function Server:forget(id)
  self.engine_model.engine.front:drop(-id)
  self:asked(self.reading[id], -1)
  self.reading[id] = nil
end

function Server:guard(r, f, ...)
  local ok, e = pcall(f, ...)
  if ok then return end
  if not openai.is_refusal(e) then
    if e == "not enough memory" then collectgarbage() end -- LuaJIT does not by itself
    self.log(("request %s: %s"):format(r.request_id, tostring(e)))
    e = openai.refusal("internal error", { status = 500 })
  end
  self:refuse(r.id, e)
end

-- Jobs -----------------------------------------------------------------------------------------------------

function Server:submit(r, o)
  self.n_jobs = self.n_jobs + 1
  self:name_tenant(r)
  local job = answers.job(self, r, o, self.n_jobs)
  job.by = o.kind == "embedding" and embeddings or answers
  local ok, e = pcall(job.by.submit, job, self.engine_model)
  if not ok then
    answers.cancel(job, self.engine_model.engine)
    error(e, 0)
  end
  self.jobs[r.id] = job
end

function Server:drop(job)
  answers.cancel(job, self.engine_model.engine)
  self.jobs[job.http_id] = nil
end

-- What a job has to say goes to its client; where that one is gone, or too slow, the job is over.
function Server:flush(job)
  local text, last = job.by.news(job, self.engine_model)
  if job.refusal then
    answers.cancel(job, self.engine_model.engine)
    if not job.begun then
      self.jobs[job.http_id] = nil
      return self:refuse(job.http_id, job.refusal)
    end
  end
  if not text and not last then return end
  local id, ok, fine = job.http_id, true, true
  if last then self.http:note(id, answers.note(job)) end
  if not job.o.stream then
    local whole = json.encode(openai.answer(job))
    self.litter = self.litter + #whole
    self:reply(id, 200, whole)
  else
    if not job.begun then ok = self.http:begin(id) end
    job.begun = true
    if ok and text then fine = self.http:send(id, text) end
    if ok and fine and last then self.http:finish(id) end
  end
  if last then self.jobs[id] = nil elseif not (ok and fine) then self:drop(job) end
end

-- A fault of ours ends the request that it was found in, and no other.
function Server:lose(job, e)
  self.log(("request %s: %s"):format(job.name, tostring(e)))
  local refusal = openai.refusal("internal error", { status = 500 })
  self:drop(job)
  if not job.begun then return self:refuse(job.http_id, refusal) end
  self.http:send(job.http_id, openai.error_frame(refusal))
  self.http:finish(job.http_id)
end

-- The loop -------------------------------------------------------------------------------------------------

--- One turn: requests that are there are taken, or waited for if there is nothing else to do; one step; answers go out.
function Server:turn()
  local engine, stepped = self.engine_model.engine, false
  local asked = self.attach and self.attach:turn()
  local works = engine.n_open > engine.n_texts and not self.paused
  if not works and self.litter > LITTER then self:clean() end
  local wait = (works or self.restless or asked) and 0 or IDLE_S
  local r = self.http:next(self.attach and self.attach.group or engine.front and engine.front.fd or -1, wait)
  self.restless = false
  for i = 1, PER_TURN do
    if not r then break end
    self:take(r)
    r = i < PER_TURN and self.http:next(-1, 0) or nil
  end
  self:hurry()
  engine:receive()
  if engine.n_open > engine.n_texts and not self.paused then
    local ok, e = pcall(engine.step, engine)
    stepped = true
    if not ok then self:failed(e) end
  end
  for _, job in pairs(self.jobs) do
    local ok, e = pcall(self.flush, self, job)
    if not ok then self:lose(job, e) end
    self.restless = self.restless or job.restless
  end
  self.http:beat(not self.draining and not self.paused, stepped)
end

-- What large bodies and answers have left behind. Steps make the collector go on; a server that has nothing to do would
-- keep it.
function Server:clean()
  self.litter = 0
  collectgarbage()
  C.pl_host_trim()
end

-- Most bodies take the front less than a step's own bookkeeping: those that came just now need not wait for the step.
function Server:hurry()
  local engine, until_s = self.engine_model.engine, C.pl_now_s() + HURRY_S
  while self.n_asked > 0 and not self.hurried do
    local left = until_s - C.pl_now_s()
    if left <= 0 or C.pl_host_wait(engine.front.fd, left) ~= 1 then break end
    engine:receive()
  end
  self.hurried = self.n_asked > 0
end

-- A step that failed ends what it was to compute; an engine that says that it has stopped ends the server.
function Server:failed(e)
  self.log("step: " .. tostring(e))
  for _, job in pairs(self.jobs) do
    job.refusal = openai.refusal("the step failed", { status = 500 })
    answers.cancel(job, self.engine_model.engine)
  end
  self.restless = true
  if self.engine_model.engine.stopped then self.broken = true end
end

-- SIGTERM and Ctrl-C drain, and `attach` can; a second one, or the time, ends at once. SIGHUP reads the deployment
-- file and the keys again.
function Server:signals()
  local n = C.pl_host_signals(C.PL_SIGTERM)
  if C.pl_host_interrupted(true) then self.n_interrupts = self.n_interrupts + 1 end
  local hups = C.pl_host_signals(C.PL_SIGHUP)
  if hups > self.n_hups then
    self.n_hups = hups
    local ok, e = pcall(self.reload, self)
    if not ok then self.log(tostring(e)) end
  end
  return n + self.n_interrupts + (self.wants_drain and 1 or 0)
end

-- Shares belong to tenants' names, which are numbered as they come.
function Server:name_tenant(r)
  if self.tenant_names[r.tenant] or not r.tenant_name or r.tenant_name == "" then return end
  self.tenant_names[r.tenant] = r.tenant_name
  self.engine_model.engine.shares[r.tenant] = ((self.o.tenants or {})[r.tenant_name] or {}).share
end

--- Reads the deployment file, the keys and the policy again: what can change does, what cannot is named; what is wrong
--- changes nothing. Returns what has happened, a line each; raises where nothing has.
function Server:reload()
  local old, new, said, stay, attached = self.o, self.o, {}, {}, nil
  local ok, e = pcall(function()
    local fresh = old.reread and old.reread() or old
    for _, k in ipairs { "keys", "policy" } do -- gone from the file: a server does not become open like that
      if old[k] and not fresh[k] then
        stay[#stay + 1], fresh[k] = k, old[k]
        if fresh.t then fresh.t[k] = (old.t or {})[k] end
      end
    end
    for _, path in ipairs { fresh.keys or "", fresh.policy or "" } do require("pl.file").ready(path) end
    local policy = fresh.policy and { require("pl.policy").load(fresh.policy, RELOAD) }
    local keys = http.keys_of(fresh.keys)
    if fresh.access_log ~= nil then M.log_to(old.http, fresh.access_log) end -- also the same: it may have been renamed
    local engine = self.engine_model.engine
    if keys then
      self.http:keys(keys)
      engine.n_tenants = self.http:n_tenants()
    end
    if self.attached then
      attached = ("reload: policy: %s, which attach set, "):format(engine.policy_name)
        .. (policy and ("gives way to %s"):format(fresh.policy) or "stays, as none is named")
    end
    if policy then
      engine:take_policy(policy[1], policy[2], fresh.policy)
      self.attached = nil
    end
    new = fresh
  end)
  if not ok then error(err.new(("reload: nothing has changed: %s"):format(tostring(e))), 0) end
  local now, later = require("pl.deploy").changes(old.t or {}, new.t or {})
  for _, k in ipairs(stay) do later[#later + 1] = k end
  for _, k in ipairs { "keys", "policy", "tenants", "drain_s", "access_log", "vllm_names" } do old[k] = new[k] end
  local shares = self.engine_model.engine.shares
  for number, name in pairs(self.tenant_names) do shares[number] = ((old.tenants or {})[name] or {}).share end
  if old.keys then said[1] = "keys: read again" end
  said[#said + 1] = attached
  if #now > 0 then said[#said + 1] = "reload: changed: " .. table.concat(now, " ") end
  if #later > 0 then said[#said + 1] = "reload: needs a restart: " .. table.concat(later, " ") end
  if #said == 0 then said[1] = "reload: nothing is new" end
  for _, line in ipairs(said) do self.log(line) end
  return said
end

--- Serve until a signal ends it. Returns the exit code: 0 when everything that had begun was answered.
function Server:run()
  while not self.broken do
    local n = self:signals()
    if n > 0 and not self.draining then
      self.paused = false
      self.draining, self.ends_s = true, C.pl_now_s() + (self.o.drain_s or 30)
      self.log(("draining: %d requests"):format(self:open_jobs()))
      self.http:drain()
    end
    if n > 1 or self.draining and C.pl_now_s() > self.ends_s then break end
    self:turn()
    if self.draining and self:open_jobs() == 0 and self.http:stats().n_open == 0 then break end
  end
  return self:stop()
end

function Server:open_jobs()
  local n = 0
  for _ in pairs(self.jobs) do n = n + 1 end
  return n
end

-- What is left hears that it ends; then the connections get a moment to read it.
function Server:stop()
  local left = self:open_jobs()
  for id in pairs(self.reading) do
    self:forget(id)
    self:refuse(id, openai.refusal("the server is shutting down", { status = 503 }))
    left = left + 1
  end
  for _, job in pairs(self.jobs) do
    job.refusal = openai.refusal("the server is shutting down", { status = 503 })
    answers.cancel(job, self.engine_model.engine)
    self:flush(job)
  end
  self.http:drain()
  local until_s = C.pl_now_s() + (left == 0 and FLUSH_S or 0.5)
  while self.http:stats().n_connections > 0 and C.pl_now_s() < until_s do self.http:next(-1, 0.05) end
  self.http:close()
  if self.attach then self.attach:close() end
  return (left > 0 or self.broken) and 1 or 0
end

--- The access log goes there from now on: a file, "-" (standard error), or nil.
function M.log_to(http_opts, where)
  local fd = abi.new("int32_t[1]", { http_opts.log_fd or -1 })
  if where == true then where = "-" end
  abi.check(C.pl_host_log(fd, where or nil, abi.err))
  http_opts.log_fd = fd[0]
end

-- A socket that was not asked for by its path may fail, but not take the place of another server's.
function Server:open_attach()
  local attach = require "pl.attach"
  local path = self.o.socket or attach.path(self.http.port, self.o.dir)
  local ok, a = pcall(attach.open, self, path)
  if ok then
    self.attach = a
  elseif self.o.socket or tostring(a):find "another server" then
    error(a, 0)
  else
    self.log("attach: " .. tostring(a))
  end
end

-- The model, with what the deployment says of its recipe's pools, integrity and template.
local function start_model(o)
  local m = require("pl.model").open(o.model, o.load)
  if o.pool and not m.recipe.pools[o.pool] then err.unknown("the recipe's pools", o.pool, err.names(m.recipe.pools)) end
  if o.integrity then
    local integrity = {}
    for k, v in pairs(m.recipe.integrity or {}) do integrity[k] = v end
    for k, v in pairs(o.integrity) do integrity[k] = v end
    m.recipe.integrity = integrity
  end
  if o.chat_template then
    local chat = require("pl.chat").open(o.chat_template)
    local ok, own = pcall(m.chat_template, m)
    if ok then chat.tokens = own.tokens end
    m.chat = chat
  end
  return m:start(o.context)
end

local function open_http(o)
  local ok, h = pcall(http.open, o.http)
  if ok then return h end
  if o.tls and err.is(h) and h.code == "EFORMAT" then
    h = err.new(("tls: the certificate %s and the key %s: no pair that can be used"):format(o.tls.cert, o.tls.key))
  end
  error(h, 0)
end

--- o: { model = (a path), load = (options of pl.model), context, name, http = (see pl.http), keys = (a file), drain_s,
--- vllm_names, policy; tenants, integrity, pool, chat_template, access_log, tls = { cert, key } (files; see
--- pl.deploy); socket = (a path for `attach`; false: none), dir = (where one without a path lies), reread = (a function
--- that returns o anew) }. Listens before the model is there: /health says when it is ready.
function M.open(o, log)
  local s = setmetatable({ o = o, jobs = {}, reading = {}, n_asked = 0, asked_of = {}, litter = 0, n_jobs = 0,
    n_hups = 0, n_interrupts = 0, tenant_names = {}, log = log or function() end }, Server)
  C.pl_host_signals(C.PL_SIGTERM)
  C.pl_host_signals(C.PL_SIGHUP)
  local urandom = io.open("/dev/urandom", "rb")
  if urandom then -- seeds of requests that name none
    local seed = 0
    for _, b in ipairs { urandom:read(6):byte(1, -1) } do seed = seed * 256 + b end
    math.randomseed(seed)
    urandom:close()
  end
  o.http = o.http or {}
  if o.access_log ~= nil then M.log_to(o.http, o.access_log) end
  s.http = open_http(o)
  local keys = http.keys_of(o.keys)
  if keys then s.http:keys(keys) end
  local ok, e = pcall(function()
    s.engine_model = start_model(o)
    if o.policy then s.engine_model:set_policy(o.policy) end
    s.engine_model.engine.n_tenants = s.http:n_tenants()
    s.engine_model.engine:open_front(s.engine_model:tokenizer())
    if o.socket ~= false then
      s:open_attach()
    end
  end)
  if not ok then
    s.http:close()
    error(e, 0)
  end
  s.started = os.time()
  s.model = { name = o.name or o.model:gsub("/+$", ""):match "[^/]*$", vocab = s.engine_model.trace.vocab,
    stops = s.engine_model:stops(), pooling = s.engine_model:pooling(), width = s.engine_model.trace.width }
  local has, chat = pcall(s.engine_model.chat_template, s.engine_model)
  if not has then s.log("/v1/chat/completions: " .. tostring(chat)) end
  s.setup = requests.setup(s.model, s.engine_model.context, has and chat or nil)
  s.reader = requests.reader(s.setup, s.engine_model:tokenizer())
  s.engine_model.engine.on_request = function(letter) s:read(letter) end
  s.http:beat(true, false)
  return s
end

return M
