-- The engine: requests go in, the policy plans each step over records that live in C, C runs it, events come
-- out.
local abi, arg, err = require "pl.abi", require "pl.arg", require "pl.err"
local policy, schema = require "pl.policy", require "pl.schema"
local cache, front, json = require "pl.cache", require "pl.front", require "pl.json"
local sandbox, tensor, jit = require "pl.sandbox", require "pl.tensor", require "jit"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

-- What a policy sees ----------------------------------------------------------------------------------------

local State = {}
local state_mt = { __index = State, __metatable = false }

-- The requests as the step begins.
function State:_look()
  local q = self._queue
  C.pl_engine_look(self._ptr, q)
  self._planned, self._plans, self._served = {}, 0, {}
end

-- A policy may keep its state for longer than the step, or the engine, is there.
local function open(s, what)
  if not s._open then err.raise(("s.%s: the step is over"):format(what)) end
end

-- The first of list[i..n-1] that `fits`, and the place after it.
local function first_of(list, i, n, state, fits)
  while i < n do
    local r = list[i][0]
    i = i + 1
    if r.state == state and fits(r) then return r, i end
  end
  return nil, i
end

-- Those of list[0..n-1] that `fits` and that have not been preempted since the step began. Each is a reference: unlike
-- a pointer it does not lead to what lies beside it. Most fit: an iterator without a loop of its own can be compiled
-- with the loop that it serves.
local function each(s, what, list, n, state, fits)
  open(s, what)
  local i = 0
  return function()
    open(s, what)
    if i >= n then return nil end
    local r = list[i][0]
    i = i + 1
    if r.state == state and fits(r) then return r end
    r, i = first_of(list, i, n, state, fits)
    return r
  end
end
local function decodes(r) return r.left == 1 and r.n_done >= r.n_prompt end
local function begun(r) return not decodes(r) end
local function any() return true end

--- Requests that decode; and requests with prompt left, those that have begun first. In order of priority, then of
--- arrival. Of each: id, n_prompt, n_done, n_out, max_out, left, priority, tenant, n_preempted, loading, arrived_s,
--- deadline_s, started_s, first_s.
function State:running()
  return each(self, "running", self._queue.running, self._queue.n_running, C.PL_RUNNING, decodes)
end
function State:waiting()
  local q = self._queue
  local first, rest = each(self, "waiting", q.running, q.n_running, C.PL_RUNNING, begun), nil
  return function()
    local r = not rest and first()
    if r then return r end
    rest = rest or each(self, "waiting", q.waiting, q.n_waiting, C.PL_WAITING, any)
    return rest()
  end
end

--- The request that runs and would go last: of the lowest priority, then the youngest; nil if none runs that can be
--- preempted.
function State:youngest()
  open(self, "youngest")
  local q = self._queue
  for i = q.n_running - 1, 0, -1 do
    local r = q.running[i]
    if r.state == C.PL_RUNNING and not r.kept then return r[0] end
  end
end

--- Pages that a request's known tokens take; 0 if it has begun, as those are not counted as free any more.
function State:pages_for(r)
  return r.state == C.PL_WAITING and math.ceil((r.n_done + r.left) / self._page) or 0
end

--- Tokens of a waiting request that the prefix cache or a tier behind it has; tokens computed so far for a request's
--- tenant.
function State:cached(r)
  open(self, "cached")
  return C.pl_engine_cached(self._ptr, r.id)
end
function State:served(r)
  open(self, "served")
  local t = r.tenant
  local n = self._served[t]
  if not n then
    n = C.pl_engine_served(self._ptr, t)
    self._served[t] = n
  end
  return n
end

--- The share that a deployment gives the request's tenant; 1 if it says nothing.
function State:share(r) return self._shares[r.tenant] or 1 end

--- n tokens of a request in this step; false if the step or the cache has no room for them, or if r.loading pages of
--- it are on their way from host memory or disk.
function State:prefill(r, n)
  open(self, "prefill")
  local id = tonumber(r.id)
  if self._planned[id] then return true end
  if n < 1 then return false end
  local rc = C.pl_engine_plan(self._ptr, r.id, n, e)
  if rc == C.PL_EFULL or rc == C.PL_EPAGES or rc == C.PL_EBUSY then return false end
  check(rc)
  self._planned[id] = true
  self._plans = self._plans + 1
  return true
end

--- The next token of a request.
function State:decode(r) return self:prefill(r, 1) end

--- Give back the pages of a request that runs; it waits again, and what is not in the prefix cache is computed
--- anew. False for one that was preempted 64 times without getting further: it goes on to its end.
function State:preempt(r)
  open(self, "preempt")
  local id = tonumber(r.id)
  if not check(C.pl_engine_preempt(self._ptr, r.id, e)) then return false end
  if self._planned[id] then self._planned[id], self._plans = nil, self._plans - 1 end
  return true
end

--- Is anything planned for this step yet? Are there copies to wait for, where nothing can be?
function State:has_plan() return self._plans > 0 end
function State:has_copies() return C.pl_engine_wait(self._ptr, 0) end

local figures = {
  tokens = { left = function(s) return C.pl_engine_step_left(s._ptr) end, chunk = function(s) return s._chunk end },
  rows = { left = function(s) return C.pl_engine_rows_left(s._ptr) end },
  pages = { free = function(s) return tonumber(C.pl_engine_free_pages(s._ptr)) end,
    total = function(s) return s._pages end,
    -- one for each request that runs, as each will need one before long
    reserve = function(s) return s._queue.n_running end },
}
local function figure(state, what)
  local get = figures[what]
  return setmetatable({}, { __metatable = false, __index = function(_, k)
    if not get[k] then err.unknown("s." .. what, tostring(k), err.names(get)) end
    open(state, what)
    return get[k](state)
  end, __newindex = function(_, k) err.raise(("s.%s.%s cannot be set by a policy"):format(what, tostring(k))) end })
end

local function new_state(ptr, page, pages, chunk, shares)
  local s = policy.state(setmetatable({ _ptr = ptr, _page = page, _pages = pages, _chunk = chunk,
    _shares = shares or {}, _queue = abi.new "pl_queue" }, state_mt))
  for what in pairs(figures) do s[what] = figure(s, what) end
  return s
end

--- The state as a recipe's policy sees it: it can be asked and planned with, and not be changed.
local function shown_to_policy(state)
  local function record(what, r)
    if not abi.istype("pl_request", r) then
      err.raise(("s:%s: %s, want a request"):format(what, schema.show(r)))
    end
    return r
  end
  local shown = { tokens = state.tokens, rows = state.rows, pages = state.pages }
  for _, name in ipairs { "running", "waiting", "youngest", "has_plan" } do
    shown[name] = function() return state[name](state) end
  end
  for _, name in ipairs { "pages_for", "cached", "served", "share", "decode", "preempt" } do
    shown[name] = function(_, r) return state[name](state, record(name, r)) end
  end
  function shown.prefill(_, r, n)
    record("prefill", r)
    if type(n) ~= "number" or n % 1 ~= 0 or n > 2 ^ 31 - 1 then
      err.raise(("s:prefill: %s tokens, want a whole number"):format(schema.show(n)))
    end
    return state:prefill(r, n)
  end
  return policy.state(setmetatable({}, { __metatable = false,
    __newindex = function(_, k) err.raise(("s.%s cannot be set by a policy"):format(tostring(k))) end,
    __index = function(_, k)
      if k == "now" then
        open(state, k)
        return tonumber(C.pl_engine_now(state._ptr))
      end
      if shown[k] == nil then err.unknown("the state of a step", tostring(k), err.names(shown)) end
      return shown[k]
    end }))
end

--- The state of an engine's steps, { look(), n(), plan(run), close() }, and its queue. look: the step begins; n: of the
--- requests, those that run, wait or have ended in it; plan: by a policy (see pl.policy.runner), which is given the
--- state as it is if it is one of perilune's, and a guarded one if not; close: the engine will be gone.
function M.state(ptr, page, pages, chunk, shares)
  local own = new_state(ptr, page, pages, chunk, shares)
  local shown = shown_to_policy(own)
  local function alive() return own._ptr or err.raise "this engine is closed" end
  local function plan(run)
    alive()
    own._open = true
    local ok, e2 = pcall(run, shown, own)
    own._open = false
    if not ok then error(e2, 0) end
    return own._plans > 0 or own._queue.n_events > 0
  end
  local q = own._queue
  local function look()
    alive()
    own:_look()
  end
  local function n() return q.n_running + q.n_waiting + q.n_events end
  return { look = look, n = n, plan = plan, close = function() own._ptr = nil end }, q
end

-- The engine ------------------------------------------------------------------------------------------------

local MAX_TENANTS, MAX_INCIDENTS = 1024, 100
local page_states = { [0] = "free", "owned", "quarantined" }
local function tag_text(tag) return (tostring(tag):gsub("ULL", "")) end

local Engine = {}
Engine.__index = Engine
local Closed = arg.closed "engine"
local over, tokenised -- of a request

local finish = { [C.PL_FINISH_STOP] = "stop", [C.PL_FINISH_LENGTH] = "length",
  [C.PL_FINISH_CANCELLED] = "cancelled", [C.PL_FINISH_ERROR] = "error", [C.PL_FINISH_DEADLINE] = "deadline",
  [C.PL_FINISH_INTEGRITY] = "integrity" }

--- o: { dev, prog, cache (the recipe's), pool, context, vocab, schedule, box, integrity, identity (what decides the
--- numbers in a page, beside the cache's layout: for a disk cache), weights_id (of the checkpoint: for calibrated
--- scales) }
function M.open(o)
  local kv, ptr, pool = abi.new "pl_kv *[1]", abi.new "pl_engine *[1]", o.pool
  local integrity = o.integrity or {}
  local kv_opts, figures_of = cache.options(o.cache, pool, o.context)
  kv_opts.check = cache.checks[integrity.check or "pages"]
  cache.tiers(pool, figures_of) -- sizes that have no use are told in the pool's own words
  check(C.pl_kv_open(kv, o.dev.ptr, kv_opts, e))
  local self = setmetatable({ kv = kv[0], page = kv_opts.page, cache = figures_of, requests = {}, incidents = {},
    integrity = integrity, policy_counter = { failures = 0 }, shares = {},
    line = { first = 1, last = 0 }, n_open = 0, n_texts = 0,
    n_tenants = 1, of_tenant = {}, -- those who may come, and how many requests of each are open
    n_embeds = 0, embed_tokens = 0, -- of those that are open: requests for embeddings, tokens of their prompts
    context = o.context, places = pool.batch + pool.queue, fronts = pool.fronts }, Engine)
  self.kv_bytes = figures_of.bytes
  local opts = abi.new "pl_engine_opts"
  opts.max_requests, opts.max_rows, opts.max_tokens, opts.n_vocab = self.places, pool.batch, pool.tokens, o.vocab
  opts.prefix, opts.n_tenants, opts.scrub = pool.prefix, MAX_TENANTS, integrity.scrub or 0.01
  opts.host_cache_bytes, opts.disk_cache_bytes = pool.host_cache_bytes or 0, pool.disk_cache_bytes or 0
  opts.disk_cache, opts.model = pool.disk_cache, o.identity
  local ok, what = pcall(function()
    cache.ready(self.kv, o.cache, pool, o.weights_id)
    return check(C.pl_engine_open(ptr, o.prog.ptr, self.kv, opts, e))
  end)
  if not ok then
    self:close()
    error(what, 0)
  end
  local pages = self.kv
  self.ptr = abi.gc(ptr[0], function(p) -- one finalizer for both: it must go before the cache
    C.pl_engine_close(p)
    C.pl_kv_close(pages)
  end)
  self.run_policy = policy.runner(o.schedule, o.box, self.policy_counter)
  self.state = M.state(self.ptr, self.page, figures_of.pages, pool.chunk, self.shares)
  self.policy_name = o.schedule and "the recipe's" or "decode_first"
  for _, name in ipairs(policy.names) do if o.schedule == policy[name] then self.policy_name = name end end
  return self
end

local number, id_list = schema.number, schema.list(schema.whole(0))

-- { [id] = number }: what is added to the logits of tokens
local function bias(t)
  if type(t) ~= "table" then return schema.show(t) .. ", want a table: { [id] = number }" end
  for id, v in next, t do
    if schema.wrong(id, schema.whole(0)) then return ("an entry for %s, want token ids"):format(schema.show(id)) end
    if type(v) ~= "number" or v ~= v then
      return schema.show(v) .. ", want a number", ("[%d]"):format(id)
    end
  end
end
local request_fields = { "ids", ids = id_list, max_tokens = schema.whole(0), min_tokens = schema.whole(0),
  stop = schema.list(schema.whole(0), 0), priority = number(-2 ^ 31, 2 ^ 31 - 1),
  tenant = schema.whole(0, MAX_TENANTS - 1), deadline = number(0, 1e9),
  cache_salt = "string",
  temperature = number(0, 100), top_p = number(1e-6, 1), min_p = number(0, 1), top_k = schema.whole(0),
    seed = schema.whole(0, 2 ^ 53),
  repetition_penalty = number(0.01, 100), presence_penalty = number(-100, 100),
    frequency_penalty = number(-100, 100),
  logprobs = schema.whole(-1, C.PL_MAX_LOGPROBS), logit_bias = bias, on_token = "function",
  embed = { last = true, mean = true }, dimensions = schema.whole(1) }
M.request_fields = request_fields
local text_fields = {} -- the same without ids
for k, want in pairs(request_fields) do if type(k) == "string" and k ~= "ids" then text_fields[k] = want end end

local embed_kinds = { last = C.PL_EMBED_LAST, mean = C.PL_EMBED_MEAN }

--- Tokens that an answer to n tokens of prompt may have at most, of those that are wanted; or nil and what is wrong.
function M.room(context, n, wanted)
  if n == 0 then return nil, "the prompt is empty" end
  if context - n < math.min(1, wanted) then
    return nil, ("a prompt of %d tokens, the cache has room for %d"):format(n, context)
  end
  return math.min(wanted, context - n)
end

--- How many more requests of a tenant there is room for. Each of self.n_tenants is sure of half of what its share of
--- all places would be: what others have not taken of theirs is kept for them. n, of: how many are there, of all and
--- of each tenant; default: those that are open.
function Engine:room(tenant, n, of)
  of = of or self.of_tenant
  local free, all = self.places - (n or self.n_open), 0
  if self.n_tenants < 2 then return free end
  for t = 0, self.n_tenants - 1 do all = all + (self.shares[t] or 1) end
  for t = 0, self.n_tenants - 1 do
    local sure = math.floor(self.places / 2 * (self.shares[t] or 1) / all)
    if t ~= tenant then free = free - math.max(0, sure - (of[t] or 0)) end
  end
  return free
end

--- Submit a request: { ids =, max_tokens =, stop = { ids }, temperature =, top_p =, ... on_token =
--- function(id, event) }. Returns it with `ids` of the answer and, when it is over, `finish`; or nil and a
--- code where there is no room. With a text (and a tokenizer) in place of ids, a front thread tokenises it while the
--- engine goes on; what is wrong with the prompt is then the request's own `error`, with finish "error". flags:
--- PL_TOK_* for the text; default PL_TOK_BOS. given: ids in memory, { ids = int32_t *, n = }, which are copied.
--- With embed = "last" or "mean" a request has no answer: it ends (finish "stop") when its prompt is computed, and
--- has an `embedding` then, a tensor: the hidden states after the last norm, of the last token or their mean over all,
--- cut to `dimensions` values and made to have length 1. It does not depend on what ran beside it, nor on the steps
--- that the prompt took. The prefix cache serves "last" only: a mean needs every token computed.
function Engine:submit(o, text, tok, flags, given)
  if self.stopped then err.raise "engine: stopped, as a page was found in other hands (integrity.on_mismatch)" end
  o = schema.check("request", (text or given) and text_fields or request_fields, o)
  if text then self:open_front(tok) end
  local q, id = abi.new "pl_request_opts", abi.new "int64_t[1]"
  local stop = abi.array("int32_t", o.stop or {})
  given = given or { ids = abi.array("int32_t", o.ids or {}), n = #(o.ids or {}) }
  local bias_ids, biases = {}, {}
  for k, v in next, o.logit_bias or {} do bias_ids[#bias_ids + 1], biases[#biases + 1] = k, v end
  local bias_id, bias_of = abi.array("int32_t", bias_ids), abi.array("float", biases)
  q.prompt, q.n_prompt, q.stop, q.n_stop, q.later = given.ids, given.n, stop, #(o.stop or {}), text ~= nil
  if o.dimensions and not o.embed then err.raise "request.dimensions: only with embed" end
  if o.embed then q.embed, q.n_embed = embed_kinds[o.embed], o.dimensions or 0 end
  q.max_out, q.min_out, q.priority = o.embed and 0 or o.max_tokens or 256, o.min_tokens or 0, o.priority or 0
  q.tenant, q.deadline_s = o.tenant or 0, o.deadline or 0
  q.salt, q.n_salt = o.cache_salt, #(o.cache_salt or "")
  local s = q.sample
  s.temperature, s.top_p, s.min_p, s.top_k = o.temperature or 0, o.top_p or 1, o.min_p or 0, o.top_k or 0
  s.repetition, s.presence, s.frequency = o.repetition_penalty or 1, o.presence_penalty or 0,
    o.frequency_penalty or 0
  s.n_logprobs, s.seed = o.logprobs or -1, o.seed or 0
  s.bias_id, s.bias, s.n_bias = bias_id, bias_of, #biases
  local ok, code = check(C.pl_engine_submit(self.ptr, q, id, e))
  if not ok then return nil, code end
  local r = { id = id[0], prompt_tokens = not text and given.n or nil, ids = {}, n_out = 0, on_token = o.on_token,
    submitted_s = C.pl_now_s(), tenant = q.tenant }
  if o.logprobs and o.logprobs >= 0 then r.logprobs = {} end
  self.requests[tonumber(id[0])] = r
  self.n_open, self.of_tenant[r.tenant] = self.n_open + 1, (self.of_tenant[r.tenant] or 0) + 1
  if o.embed then
    r.embeds = given.n
    self.n_embeds, self.embed_tokens = self.n_embeds + 1, self.embed_tokens + given.n
  end
  if text then
    r.tokenising, r.max_tokens = true, q.max_out
    r.gives_up_s = o.deadline and o.deadline > 0 and r.submitted_s + o.deadline or math.huge
    self.n_texts = self.n_texts + 1
    ok, code = self.front:ask(r.id, front.kinds.encode, flags or C.PL_TOK_BOS, text)
    if not ok then
      self:fail(r, code)
      return nil, code
    end
  end
  return r
end

--- Starts the front threads, which takes a moment, unless they are there: a server does so before its first request.
function Engine:open_front(tok)
  self.front = self.front or front.open { tok = tok, threads = self.fronts, letters = self.places }
end

-- Answers of the front, by kind.
local letters = {}

letters[front.kinds.encode] = function(self, letter)
  local r = self.requests[tonumber(letter.id)]
  if not r then return end -- it was cancelled meanwhile
  if letter.code < 0 then return self:fail(r, abi.string(letter.data, letter.n)) end
  local n = tonumber(letter.n) / 4
  r.prompt_tokens = n
  local most, why = M.room(self.context, n, r.max_tokens)
  if not most then return self:fail(r, why) end
  local rc = C.pl_engine_prompt(self.ptr, r.id, abi.cast("const int32_t *", letter.data), n, most, e)
  if rc < 0 then return self:fail(r, abi.string(e.msg)) end
  tokenised(self, r)
end

-- What a body asks is the server's.
letters[front.kinds.request] = function(self, letter) self.on_request(letter) end

function tokenised(self, r)
  if r.tokenising then self.n_texts = self.n_texts - 1 end
  r.tokenising = nil
end

-- A request ends for a reason of its own.
function Engine:fail(r, why)
  r.error = why
  C.pl_engine_fail(self.ptr, r.id, e)
  over(self, tonumber(r.id), "error")
end

function Engine:receive()
  if self.front then self.front:receive(letters, self) end
end

--- Sleeps until there is something to do: true; false where `seconds` (nil: for ever) are over first; nil and a code
--- for Ctrl-C. Something to do: a step, or a request that has ended.
function Engine:wait(seconds)
  local until_s = C.pl_now_s() + (seconds or math.huge)
  self:between_steps "wait"
  while true do
    local n = self.n_open
    self:receive()
    if self.n_open > self.n_texts or self.n_open < n then return true end
    local wake_s = until_s
    for _, r in pairs(self.n_texts > 0 and self.requests or {}) do wake_s = math.min(wake_s, r.gives_up_s) end
    local now = C.pl_now_s()
    if now >= wake_s then return wake_s < until_s end -- a step ends the request whose time is over
    local rc = C.pl_host_wait(self.front and self.front.fd or -1, wake_s - now)
    if rc < 0 then return nil, "ECANCEL" end
  end
end

--- Waits until no page is copied to or from a tier any more.
function Engine:settle()
  self:between_steps "settle"
  while C.pl_engine_wait(self.ptr, 1) do end
end

local function keep_logprobs(r, s)
  local top = {}
  for i = 1, s.n_top do top[i] = { s.top_id[i - 1], s.top_logprob[i - 1] } end
  r.logprobs[#r.logprobs + 1] = { id = s.token, logprob = s.logprob, top = top }
end

-- A policy that is a function of the session's own can reach the engine that asks it.
function Engine:between_steps(what)
  if self.planning then err.raise(("engine: %s while a policy plans a step"):format(what)) end
end

--- One step. Returns the number of requests that are still open.
function Engine:step()
  self:hand_out() -- within a request's own function: the outer step's events come before this one's
  if not rawget(self, "ptr") or self.n_open == 0 then return 0 end
  local state = self.state
  self:between_steps "step"
  self:receive()
  state.look()
  if state.n() == 0 then -- the request whose last token is being handed out is open still, but has ended
    if self.n_texts == 0 then return 0 end
    self:wait()
    return self.n_open
  end
  self.planning = true
  local fine, planned = pcall(state.plan, self.run_policy)
  self.planning = false
  if not fine then error(planned, 0) end
  if not planned then
    if C.pl_engine_wait(self.ptr, 1) then return self.n_open end -- pages are on their way to those that wait
    err.raise "engine: the policy plans nothing, though requests wait"
  end
  local ok, code = check(C.pl_engine_step(self.ptr, e))
  if not ok then err.raise(("engine: the step failed: %s"):format(code), nil, code) end
  local incidents = self:mismatches()
  self:tell_failure()
  self:collect()
  if incidents and self.integrity.on_mismatch == "stop_engine" then self:stop() end
  return self.n_open
end

-- A record of each page that the last step found in other hands; nil if there is none. One line each to standard
-- error: what was expected and found, and who was given the page.
function Engine:mismatches()
  local list = abi.new "const pl_mismatch *[1]"
  local n = C.pl_kv_mismatches(self.kv, list)
  if n == 0 then return end
  local m = abi.new "pl_metrics"
  C.pl_engine_metrics(self.ptr, m)
  for i = 0, n - 1 do
    local x, past = list[0][i], {}
    for k = 0, C.PL_PAGE_HISTORY - 1 do
      local p = x.past[k]
      if p.tag ~= 0 then past[#past + 1] = { owner = tonumber(p.owner), tag = tag_text(p.tag) } end
    end
    local record = { event = "page_mismatch", request = tonumber(x.owner), page = x.page, index = x.index,
      state = page_states[x.state], expected = tag_text(x.expected), found = tag_text(x.found),
      owners = json.list(past), step = tonumber(m.steps), recipe = self.name or json.null }
    self.incidents[#self.incidents + 1] = record
    if #self.incidents > MAX_INCIDENTS then table.remove(self.incidents, 1) end
    io.stderr:write("perilune: ", json.encode(record), "\n")
  end
  return n
end

-- What the disk refused is a miss, and told once.
function Engine:tell_failure()
  local text = not self.told_failure and abi.text(C.pl_engine_tier_failure(self.ptr))
  if not text then return end
  self.told_failure = true
  io.stderr:write("perilune: ", text, "; what it does not give or take is computed anew\n")
end

-- integrity.on_mismatch = "stop_engine": nothing is answered any more.
function Engine:stop()
  for _, r in pairs(self.requests) do self:cancel(r) end
  self.stopped = true
  err.raise "engine: stopped, as a page was found in other hands (integrity.on_mismatch)"
end

--- Another policy from the next step on: a name, a function, or a file that returns one. What it is replaced by is
--- loaded first: an error leaves the present one.
function Engine:set_policy(p)
  local schedule, box, own = p, nil, type(p) == "function" and not policy.is_ours(p)
  if type(p) == "string" then schedule, box = policy.load(p) end
  self.run_policy = policy.runner(schedule, own and sandbox.session() or box, self.policy_counter)
  self.policy_name = type(p) == "string" and p or "a function"
  self:interpret(own)
end

--- The same with a policy that is loaded already, and the box that it runs in: see pl.policy.load_text.
function Engine:take_policy(schedule, box, name)
  self.run_policy, self.policy_name = policy.runner(schedule, box, self.policy_counter), name
  self:interpret(false)
end

-- Compiled code asks no hook, and a session's policy may call whatever the session has: while an engine has one,
-- nothing is compiled, and what was is forgotten.
local interpreting = setmetatable({}, { __mode = "k" })
function Engine:interpret(on)
  local was = interpreting[self]
  interpreting[self] = on or nil
  if on then
    jit.off()
    jit.flush()
  elseif was and next(interpreting) == nil then
    jit.on()
  end
end

local counters = { "steps", "prompt_tokens", "out_tokens", "cached_tokens", "submitted", "refused", "preempted",
  "preempt_refused", "mismatches", "scrubbed_pages", "damaged_pages", "n_running", "n_waiting", "n_tokenising",
  "idle_pages", "evicted_pages", "spill_missed", "preempted_swap", "preempted_recompute", "n_copies", "copied_bytes",
  "copy_s" }
local tier_counters = { "hits", "stored", "dropped", "damaged", "errors", "pages", "capacity" }
local times = { "ttft_s", "itl_s", "e2e_s", "queue_s", "prompt_len", "out_len", "step_tokens" }

--- Counters since the engine was opened, as a table.
function Engine:metrics()
  local m = abi.new "pl_metrics"
  C.pl_engine_metrics(self.ptr, m)
  local out = { step_s = m.step_s, policy_failures = self.policy_counter.failures, finished = {}, pages = {} }
  for _, k in ipairs(counters) do out[k] = tonumber(m[k]) end
  for _, where in ipairs { "host", "disk" } do
    for _, k in ipairs(tier_counters) do out[("tier_%s_%s"):format(where, k)] = tonumber(m[where][k]) end
  end
  out.tier_disk_off = m.disk.off
  for code, name in pairs(finish) do out.finished[name] = tonumber(m.finished[code]) end
  for _, k in ipairs { "free", "owned", "quarantined", "in_flight" } do out.pages[k] = tonumber(m.pages[k]) end
  for _, k in ipairs(times) do
    local h = m[k]
    out[k] = { n = tonumber(h.n), mean = h.n > 0 and h.sum / tonumber(h.n) or 0, p50 = C.pl_hist_quantile(h, 0.5),
      p95 = C.pl_hist_quantile(h, 0.95), p99 = C.pl_hist_quantile(h, 0.99) }
  end
  return out
end

-- Hands the last step's events to their requests. The events are copied first: a request's own function may run
-- another step. Where such a function fails, its request is cancelled, the others get their events, and then the
-- error is raised.
function Engine:collect()
  local list = abi.new "const pl_event *[1]"
  local n = C.pl_engine_events(self.ptr, list)
  local events = abi.new("pl_event[?]", math.max(n, 1))
  abi.copy(events, list[0], n * abi.sizeof "pl_event")
  local line = self.line
  for i = 0, n - 1 do
    local v, embedding = events[i], nil
    if v.embedding ~= nil then
      embedding = tensor.empty { v.n_embedding }
      abi.copy(embedding.data, v.embedding, v.n_embedding * 4)
    end
    line.last = line.last + 1
    line[line.last] = { events, i, embedding }
  end
  self:hand_out()
end

function Engine:hand_out()
  local line, now = self.line, C.pl_now_s()
  local failed, what
  while rawget(self, "ptr") and line.first <= line.last do -- no ptr: closed by a request's own function
    local at = line[line.first]
    line[line.first], line.first = nil, line.first + 1
    local v = at[1][at[2]]
    local key = tonumber(v.id)
    local r = self.requests[key]
    if r then
      local why = finish[v.finish]
      r.n_out, r.n_cached = v.n_out, r.n_cached or v.n_cached -- n_cached: as it was for its first token
      r.embedding = at[3]
      if v.sampled.token >= 0 then
        r.first_s = r.first_s or now
        r.last_s = now
        if why ~= "stop" then
          local id = v.sampled.token
          r.ids[#r.ids + 1] = id
          if r.logprobs then keep_logprobs(r, v.sampled) end
          local ok, e2 = true, nil
          if r.on_token then ok, e2 = pcall(r.on_token, id) end
          if not ok then
            if not failed then failed, what = true, e2 end
            if not why and rawget(self, "ptr") and not r.finish then self:cancel(r) end
          end
        end
      end
      if why and not r.finish then over(self, key, why) end
    end
  end
  if failed then error(what, 0) end
end

function over(self, key, why)
  local r = self.requests[key]
  r.finish = why
  if r.tokenising and self.front then self.front:drop(r.id) end
  tokenised(self, r)
  r.last_s = r.last_s or C.pl_now_s()
  r.first_s = r.first_s or r.last_s
  self.requests[key] = nil
  self.n_open, self.of_tenant[r.tenant] = self.n_open - 1, self.of_tenant[r.tenant] - 1
  if r.embeds then
    self.n_embeds, self.embed_tokens = self.n_embeds - 1, self.embed_tokens - r.embeds
  end
end

-- Ends a request between two steps.
local function finish_by(self, what, r, f, why)
  if type(r) ~= "table" or not (r.finish or abi.istype("int64_t", r.id)) then
    err.raise(("%s: %s, want a request that submit returned"):format(what, schema.show(r)))
  end
  if r.finish then return end
  check(f(self.ptr, r.id, e))
  over(self, tonumber(r.id), why)
end

--- A request that nobody wants any more; and one whose answer is complete as it is, as by a stop text.
function Engine:cancel(r) finish_by(self, "cancel", r, C.pl_engine_cancel, "cancelled") end
function Engine:complete(r) finish_by(self, "complete", r, C.pl_engine_stop, "stop") end

function Engine:close()
  self:between_steps "close"
  if self.front then self.front:close() end
  self:interpret(false)
  if self.state then self.state.close() end
  if rawget(self, "ptr") then C.pl_engine_close(abi.gc(self.ptr, nil)) end
  C.pl_kv_close(rawget(self, "kv"))
  self.ptr, self.kv, self.front = nil, nil, nil
  setmetatable(self, Closed)
end

arg.handles("engine", Engine, "ptr", "kv")
arg.guard("engine", Engine, arg.object("engine", Engine, Closed))

return M
