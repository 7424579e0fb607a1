-- The scheduler on a clock of its own: the engine's real bookkeeping and real policies, with costs in place of
-- kernels. A million requests take minutes; what they would have taken on a device is counted.
local abi, err, schema, engine, policy = require "pl.abi", require "pl.err", require "pl.schema",
  require "pl.engine", require "pl.policy"
local file, quantiles = require "pl.file", require "pl.quantiles"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

local VOCAB = 2 ^ 20 -- of the made-up tokens
local MAX_LINE = 2 ^ 16 -- bytes of a line of a trace
M.MAX_TENANTS = 4096

-- Requests ---------------------------------------------------------------------------------------------------

-- Numbers from one seed, the same everywhere (PCG-XSH-RR 64/32, O'Neill 2014).
function M.random(seed)
  local state, step = abi.new("uint64_t", seed), 6364136223846793005ULL
  local function next32()
    state = state * step + 1442695040888963407ULL
    local x = tonumber(bit.band(bit.rshift(bit.bxor(bit.rshift(state, 18), state), 27), 0xffffffffULL))
    return bit.ror(bit.tobit(x), tonumber(bit.rshift(state, 59))) % 2 ^ 32
  end
  for _ = 1, 3 do next32() end
  return function() return (next32() + 0.5) / 2 ^ 32 end
end

local lengths = {
  exponential = function(mean, u) return -mean * math.log(u()) end,
  -- sigma 1: the mean is exp(mu + 1/2)
  lognormal = function(mean, u)
    local normal = math.sqrt(-2 * math.log(u())) * math.cos(2 * math.pi * u())
    return math.exp(math.log(mean) - 0.5 + normal)
  end,
  uniform = function(mean, u) return 2 * mean * u() end,
  fixed = function(mean) return mean end,
}
local function length(kind, mean, u) return math.max(1, math.floor(lengths[kind](mean, u) + 0.5)) end

--- A trace of o.requests requests: Poisson arrivals at o.rate a second (0: all at once), lengths of mean o.input and
--- o.output by distribution o.lengths; o.tenants of which tenant k sends 1/k as much as the first; a share
--- o.prefix_share of the prompts begins with one of o.prefixes common texts of o.prefix_tokens tokens.
--- Returns an iterator over { t, input, output, tenant, prefix, prefix_tokens, deadline }.
function M.generate(o)
  local u, t, made = M.random(o.seed), 0, 0
  local weight = 0
  for k = 1, o.tenants do weight = weight + 1 / k end
  return function()
    if made == o.requests then return end
    made = made + 1
    if o.rate > 0 then t = t - math.log(u()) / o.rate end
    local r = { t = t, input = length(o.lengths, o.input, u), output = length(o.lengths, o.output, u), tenant = 0,
      deadline = o.deadline }
    local x = u() * weight
    for k = 1, o.tenants do
      x = x - 1 / k
      if x <= 0 then break end
      r.tenant = math.min(k, o.tenants - 1)
    end
    if u() < o.prefix_share then
      r.prefix, r.prefix_tokens = math.floor(u() * o.prefixes) + 1, o.prefix_tokens
    end
    return r
  end
end

local whole = schema.whole
local function seconds(v) return (type(v) ~= "number" or not (v >= 0 and v < 1e15))
  and schema.show(v) .. ", want seconds" or nil end
local fields = { "t", "input", "output", t = seconds, input = whole(1), output = whole(1), tenant = whole(0),
  prefix = whole(0), prefix_tokens = whole(0), deadline = seconds, priority = whole(0) }

--- A trace from a file: a JSON object a line, with t (seconds from the start), input and output (tokens), and, where
--- wanted, tenant (a number from 0), prefix (which common text the prompt begins with), prefix_tokens, deadline
--- (seconds), priority. In order of t.
function M.read(path)
  local f, why = io.open(path, "rb")
  if not f then error(err.new(why), 0) end
  local json, list, tenants = require "pl.json", {}, 1
  local function bad(n, what)
    f:close()
    error(err.new(what, nil, path, n), 0)
  end
  local n = 0
  for line in file.lines_of(f, path, MAX_LINE) do
    n = n + 1
    if line:find "%S" then
      local ok, r = pcall(json.decode, line)
      if not ok or type(r) ~= "table" then bad(n, "want a JSON object a line") end
      local fine, checked = pcall(schema.check, "request", fields, r)
      if not fine then bad(n, tostring(type(checked) == "table" and checked.msg or checked)) end
      if #list > 0 and checked.t < list[#list].t then bad(n, "requests are not in order of t") end
      if (checked.tenant or 0) >= M.MAX_TENANTS then bad(n, ("more than %d tenants"):format(M.MAX_TENANTS)) end
      tenants = math.max(tenants, (checked.tenant or 0) + 1)
      list[#list + 1] = checked
    end
  end
  f:close()
  if #list == 0 then error(err.new(path .. ": no requests"), 0) end
  local i = 0
  return function()
    i = i + 1
    return list[i]
  end, tenants
end

--- Made-up tokens below `vocab`: a common text begins the same way every time, the rest is the request's own. Returns a
--- function(request, number) that gives an int32_t array, good until the next call. most: tokens that are asked for.
function M.prompts(vocab, most)
  local cap, buffer = 4096, abi.new("int32_t[?]", 4096)
  return function(r, n)
    local total = math.min(r.input, most or math.huge)
    if total > cap then
      cap = math.max(2 * cap, total)
      buffer = abi.new("int32_t[?]", cap)
    end
    local common = r.prefix and math.min(r.prefix_tokens or 0, total) or 0
    for i = 0, common - 1 do buffer[i] = (r.prefix * 7919 + i * 31) % vocab end
    for i = common, total - 1 do buffer[i] = (n * 104729 + i * 613) % vocab end
    return buffer
  end
end

-- What is measured ---------------------------------------------------------------------------------------------

-- Jain's index of what n tenants were given in windows of time in which each of them had something waiting: 1 is an
-- equal share for all, 1/n all for one (Jain, Chiu, Hawe 1984).
local function fairness(ptr, n, window)
  local last, since, sum, count, backlogged = {}, nil, 0, 0, true
  local f = {}
  function f.step(now, waits) -- waits[t]: requests of tenant t that wait
    for t = 0, n - 1 do backlogged = backlogged and (waits[t] or 0) > 0 end
    if since and now - since < window then return end
    local total, squares = 0, 0
    for t = 0, n - 1 do
      local served = C.pl_engine_served(ptr, t)
      local x = served - (last[t] or 0)
      last[t], total, squares = served, total + x, squares + x * x
    end
    if since and backlogged and squares > 0 then sum, count = sum + total * total / (n * squares), count + 1 end
    since, backlogged = now, true
  end
  function f.index() return count > 0 and sum / count or nil end
  return f
end

-- At most `most` samples of a series, evenly over its time: every second one goes when they are too many.
local function series(most)
  local s, every, skipped = { n = 0 }, 1, 0
  return s, function(row)
    skipped = skipped + 1
    if skipped < every then return end
    skipped = 0
    s.n = s.n + 1
    s[s.n] = row
    if s.n < most then return end
    local k = 0
    for i = 2, s.n, 2 do k = k + 1 s[k] = s[i] end
    for i = k + 1, s.n do s[i] = nil end
    s.n, every = k, every * 2
  end
end

-- The run --------------------------------------------------------------------------------------------------------

local function open_engine(o)
  local kv, ptr = abi.new "pl_kv *[1]", abi.new "pl_engine *[1]"
  local k = abi.new "pl_kv_opts"
  k.layers, k.heads, k.key_dim, k.value_dim, k.page, k.dtype, k.dry = 1, 1, 1, 1, o.page, C.PL_BF16, true
  k.n_pages = math.max(1, math.floor(o.cache_tokens / o.page))
  check(C.pl_kv_open(kv, require("pl.dev").get().ptr, k, e))
  local cost, opts = abi.new "pl_cost", abi.new "pl_engine_opts"
  for name in pairs(M.costs) do cost[name] = o[name] end
  opts.max_requests, opts.max_rows, opts.max_tokens, opts.n_vocab = o.batch + o.queue, o.batch, o.step_tokens, VOCAB
  opts.n_tenants, opts.prefix, opts.cost = o.tenants, o.prefix_cache, cost
  local ok, what = pcall(function() return check(C.pl_engine_open(ptr, nil, kv[0], opts, e)) end)
  if not ok then
    C.pl_kv_close(kv[0])
    error(what, 0)
  end
  return ptr[0], kv[0], tonumber(k.n_pages)
end

--- Costs that M.run takes, and what it takes for them otherwise: Llama-3.1-8B in BF16 on an H100 SXM (published:
--- 3.35 TB/s, 989 TFLOP/s dense BF16), at what is commonly reached of it, and 30 us a step for the launch.
M.costs = { step_s = 30e-6, weight_bytes = 16.06e9, kv_token_bytes = 131072, bytes_s = 3.35e12 * 0.8,
  token_flop = 16.06e9, pair_flop = 4 * 4096 * 32, flop_s = 989e12 * 0.5 }

M.defaults = { requests = 10000, rate = 0, input = 200, output = 100, lengths = "exponential", tenants = 1,
  prefixes = 16, prefix_tokens = 256, prefix_share = 0, seed = 1, batch = 64, queue = 65536, step_tokens = 2048,
  page = 64, cache_tokens = 400000, prefix_cache = true, policy = "decode_first", price = 0, window = 10 }

-- Submits one request of the trace; false: the queue is full.
local function submit(ptr, r, n, prompt, opts, id)
  opts.prompt, opts.n_prompt, opts.max_out = prompt(r, n), r.input, r.output
  opts.tenant, opts.arrived_s, opts.priority = r.tenant or 0, math.max(r.t, 1e-9), r.priority or 0 -- 0 would be now
  opts.deadline_s = r.deadline or 0
  return check(C.pl_engine_submit(ptr, opts, id, e)) ~= nil
end

-- Requests that come all at once need not all wait in the engine to be served in their order: more than policies look
-- at are enough. So a million of them take no more memory, and time a step, than a few thousand.
local HELD = 4096

--- Run a trace. o: what M.defaults and M.costs name, trace (an iterator, see M.generate). Returns the figures.
function M.run(o)
  local held = not o.trace and not o.queue and (o.rate or M.defaults.rate) == 0
  if held then o.queue = HELD end
  for k, v in pairs(M.defaults) do if o[k] == nil then o[k] = v end end
  for k, v in pairs(M.costs) do if o[k] == nil then o[k] = v end end
  local trace = o.trace or M.generate(o)
  local schedule, box = policy.load(o.policy)
  local counter = { failures = 0 }
  local run_policy = policy.runner(schedule, box, counter)
  local ptr, kv, n_pages = open_engine(o)
  local state, queue = engine.state(ptr, o.page, n_pages, require("pl.pool").chunk(o.step_tokens, o.chunk))
  local prompt = M.prompts(VOCAB)
  local opts, id, events = abi.new "pl_request_opts", abi.new "int64_t[1]", abi.new "const pl_event *[1]"
  opts.sample.n_logprobs, opts.sample.top_p, opts.sample.repetition = -1, 1, 1
  local itl, fair = quantiles.new(), o.tenants > 1 and fairness(ptr, o.tenants, o.window)
  local samples, sample = series(2000)
  local lua_s, last_token, waits = 0, {}, {}
  local n, submitted, refused, too_long, open, steps = 0, 0, 0, 0, 0, 0
  local started = C.pl_now_s()
  local next_request = trace()
  -- a request that could never run is counted, and the run goes on
  local function take(now)
    while next_request and next_request.t <= now and not (held and open == HELD) do
      n = n + 1
      local r = next_request
      if math.ceil((r.input + r.output) / o.page) > n_pages then too_long = too_long + 1
      elseif submit(ptr, r, n, prompt, opts, id) then submitted, open = submitted + 1, open + 1
      else refused = refused + 1 end
      next_request = trace()
    end
  end
  local function collect(now)
    local count = C.pl_engine_events(ptr, events)
    local list = events[0]
    for i = 0, count - 1 do
      local v = list[i]
      local key = tonumber(v.id)
      if v.sampled.token >= 0 then
        local last = last_token[key]
        if last then itl.add(now - last) end
        last_token[key] = now
      end
      if v.finish ~= C.PL_FINISH_NONE then
        last_token[key], open = nil, open - 1
      end
    end
  end
  local ok, what = xpcall(function()
    while next_request or open > 0 do
      if C.pl_host_interrupted(true) then err.raise("interrupted", nil, "ECANCEL") end
      if open == 0 then C.pl_engine_wait_until(ptr, next_request.t) end
      take(C.pl_engine_now(ptr))
      local before = C.pl_now_s()
      state.look()
      if queue.n_running + queue.n_waiting > 0 then
        local planned = state.plan(run_policy)
        lua_s = lua_s + (C.pl_now_s() - before)
        if not planned then err.raise "simulate: nothing can be planned, though requests wait" end
      end
      if fair then
        for t = 0, o.tenants - 1 do waits[t] = 0 end
        for i = 0, math.min(queue.n_waiting, 1000) - 1 do
          local t = queue.waiting[i].tenant
          waits[t] = waits[t] + 1
        end
      end
      check(C.pl_engine_step(ptr, e))
      steps = steps + 1
      local now = C.pl_engine_now(ptr)
      collect(now)
      if fair then fair.step(now, waits) end
      sample { now, queue.n_running, queue.n_waiting, 1 - tonumber(C.pl_kv_free_pages(kv)) / n_pages }
    end
  end, function(x) return err.from(x) end)
  local m = abi.new "pl_metrics"
  C.pl_engine_metrics(ptr, m)
  local seconds_run = C.pl_engine_now(ptr)
  local result
  if ok then result = M.figures(o, m, { seconds = seconds_run, wall_s = C.pl_now_s() - started, lua_s = lua_s,
    steps = steps, itl = itl.figures(), fairness = fair and fair.index(), refused = refused,
    too_long = too_long, n_pages = n_pages,
    failures = counter.failures, samples = samples }) end
  C.pl_engine_close(ptr)
  C.pl_kv_close(kv)
  if not ok then error(what, 0) end
  return result
end

local function times(h)
  return { mean = h.n > 0 and h.sum / tonumber(h.n) or 0, p50 = C.pl_hist_quantile(h, 0.5),
    p90 = C.pl_hist_quantile(h, 0.9), p99 = C.pl_hist_quantile(h, 0.99) }
end

--- What a run came to, as plain tables.
function M.figures(o, m, x)
  local tokens = tonumber(m.prompt_tokens + m.out_tokens)
  local f = { policy = o.policy, batch = o.batch, requests = tonumber(m.submitted), refused = x.refused,
    too_long = x.too_long,
    finished = tonumber(m.finished[C.PL_FINISH_LENGTH]), late = tonumber(m.finished[C.PL_FINISH_DEADLINE]),
    preempted = tonumber(m.preempted), seed = o.seed, seconds = x.seconds, steps = x.steps,
    prompt_tokens = tonumber(m.prompt_tokens), cached_tokens = tonumber(m.cached_tokens),
    output_tokens = tonumber(m.out_tokens), output_tok_s = tonumber(m.out_tokens) / math.max(x.seconds, 1e-9),
    total_tok_s = tokens / math.max(x.seconds, 1e-9), ttft_s = times(m.ttft_s), itl_s = x.itl,
    e2e_s = times(m.e2e_s), queue_s = times(m.queue_s), fairness = x.fairness, pages = x.n_pages,
    evicted_pages = tonumber(m.evicted_pages), policy_failures = x.failures, wall_s = x.wall_s,
    lua_us_per_step = x.lua_s / math.max(x.steps, 1) * 1e6 }
  local used, most = 0, 0
  for i = 1, x.samples.n do
    used = used + x.samples[i][4]
    most = math.max(most, x.samples[i][4])
  end
  f.page_use = { mean = x.samples.n > 0 and used / x.samples.n or 0, max = most }
  if o.price > 0 then
    f.price_per_hour = o.price
    f.price_per_million_tokens = o.price * x.seconds / 3600 / math.max(tokens, 1) * 1e6
  end
  f.samples = x.samples
  return f
end

local function ms(s) return s < 10 and ("%.1f ms"):format(s * 1000) or ("%.1f s"):format(s) end

--- The figures as a table of lines.
function M.text(f)
  local out = {}
  local function line(...) out[#out + 1] = string.format(...) end
  line("policy %s, batch %d: %d requests in %.1f s (simulated), %d steps", f.policy, f.batch, f.requests, f.seconds,
    f.steps)
  line("  finished %d, refused %d, past the deadline %d, preempted %d", f.finished, f.refused, f.late, f.preempted)
  if f.too_long > 0 then line("  longer than the whole cache: %d", f.too_long) end
  line("  %-22s %12.1f tok/s output, %.1f with prompts", "throughput", f.output_tok_s, f.total_tok_s)
  line("  %-22s %12s %10s %10s %10s", "", "mean", "p50", "p90", "p99")
  for _, row in ipairs { { "time to first token", f.ttft_s }, { "between tokens", f.itl_s },
    { "whole request", f.e2e_s }, { "in the queue", f.queue_s } } do
    local t = row[2]
    line("  %-22s %12s %10s %10s %10s", row[1], ms(t.mean), ms(t.p50), ms(t.p90), ms(t.p99))
  end
  line("  %-22s %11.1f%% mean, %.1f%% at most, of %d pages", "cache in use", f.page_use.mean * 100,
    f.page_use.max * 100, f.pages)
  line("  %-22s %12d of %d prompt tokens", "from the prefix cache", f.cached_tokens, f.cached_tokens + f.prompt_tokens)
  if f.fairness then line("  %-22s %12.3f (Jain; 1 = equal shares)", "fairness", f.fairness) end
  if f.price_per_million_tokens then
    line("  %-22s %12.4f per million tokens at %g an hour", "price", f.price_per_million_tokens, f.price_per_hour)
  end
  line("  %-22s %12.1f us a step; %.1f s in all", "the policy itself took", f.lua_us_per_step, f.wall_s)
  if f.policy_failures > 0 then
    line("  the policy failed in %d steps: decode_first took its place", f.policy_failures)
  end
  return table.concat(out, "\n")
end

--- Requests that run and wait, and the cache in use, over time: an SVG drawing.
function M.svg(f)
  local plots = {}
  for k, name in ipairs { "requests that run", "requests that wait", "cache in use" } do
    local line = {}
    for i = 1, f.samples.n do line[i] = { f.samples[i][1], f.samples[i][k + 1] } end
    plots[k] = { title = ("%s (policy %s)"):format(name, err.printable(f.policy)), most = k == 3 and 1 or nil,
      lines = { line }, span = math.max(f.seconds, 1e-9), axis = ("%.0f s"):format(f.seconds) }
  end
  return require("pl.svg").draw(plots)
end

return M
