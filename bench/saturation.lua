-- saturation.lua MODEL [N] [CONTEXT] [ROUNDS] [STEPS]: what an FP8 cache is worth when the cache is what limits. A
-- budget of bytes that stops a BF16 cache at N requests of CONTEXT tokens; the same budget in FP8 (a scale per tensor).
-- Requests are admitted one by one, by the rule of the shipped policies, until the engine has no room for another; then
-- both engines decode in turn, STEPS steps at a time, in one process. Prints requests, tokens held and decode
-- throughput of each, the ratio by pairs, and attention's share of a step; appends rows to
-- bench/results/saturation.csv. Run by pl-lua.
--
-- A context is filled with random keys and values, appended to the request's own pages by the op that prefill uses:
-- prefilling 64 contexts would take minutes, and what is measured does not depend on what the numbers are.
local ffi = require "ffi"
local abi, model, json, tensor, util = require "pl.abi", require "pl.model", require "pl.json", require "pl.tensor",
  dofile "bench/util.lua"
local C, e, check = abi.C, abi.err, abi.check
local path, N, context = arg[1], tonumber(arg[2] or 32), tonumber(arg[3] or 2048)
local rounds, steps = tonumber(arg[4] or 9), tonumber(arg[5] or 4)
local act = os.getenv "ACT" or "bf16"
local spare = rounds * steps + 2 * steps + 2 -- tokens that are decoded
local scales_path = os.tmpname()

-- Scales of which nobody asks more than that they hold numbers of about 1.
local function write_scales(c)
  local one, all = {}, {}
  for h = 1, c.heads do one[h] = 4 / 448 end
  for l = 1, c.layers do all[l] = one end
  local f = assert(io.open(scales_path, "wb"))
  f:write(json.encode { layers = c.layers, heads = c.heads, key = all, value = all })
  f:close()
end

local probe = model.open(path, { act = act })
local c = probe.fitted.cache
write_scales(c)
local page_bytes = c.layers * c.heads * (c.key_dim + c.value_dim) * 2 * c.page
local budget = N * (math.ceil(context / c.page) + 1) * page_bytes -- a request's pages, and one that it may need next

local function load(kv)
  local o = { act = act, kv = kv, cache_bytes = budget, context = context, batch = 3 * N, tokens = 3 * N, queue = 16,
    prefix = false }
  if kv == "fp8" then o.kv_scale, o.kv_scales = "tensor", scales_path end
  return model.load(path, o)
end

local function random_rows(heads, dim, n)
  local t, seed = tensor.empty { n, heads, dim }, 12345
  local x = abi.cast("float *", t.data)
  for i = 0, n * heads * dim - 1 do
    seed = (seed * 1103515245 + 12345) % 2 ^ 31
    x[i] = seed / 2 ^ 30 - 1
  end
  return t
end

local prompt = {}
for i = 1, context - spare do prompt[i] = 300 + i * 37 % 20000 end
local fill = #prompt - 2
local keys, values = random_rows(c.heads, c.key_dim, fill), random_rows(c.heads, c.value_dim, fill)

-- All of a waiting request's prompt but the last token is in the cache afterwards; false: there is no room.
local function admit(m, r)
  local ptr, kv, q, span = m.engine.ptr, m.engine.kv, ffi.new "pl_queue", ffi.new "pl_span[1]"
  C.pl_engine_look(ptr, q)
  if C.pl_engine_free_pages(ptr) - math.ceil(#prompt / c.page) < q.n_running then return false end
  check(C.pl_engine_plan(ptr, r.id, 1, e))
  check(C.pl_engine_step(ptr, e))
  m.engine:collect()
  C.pl_engine_look(ptr, q)
  for i = 0, q.n_running - 1 do
    if q.running[i].id == r.id then
      local record = ffi.cast("pl_request *", q.running[i])
      span[0].seq, span[0].n = record.seq, fill
      check(C.pl_kv_begin(kv, span, 1, e))
      for layer = 0, c.layers - 1 do
        check(C.pl_kv_append(C.pl_dev_stream(m.dev.ptr), kv, layer, keys, values, e))
      end
      check(C.pl_kv_commit(kv, e))
      record.n_done, record.left = record.n_done + fill, record.left - fill
      return true
    end
  end
  error "the request does not run"
end

local function saturate(kv)
  local m, n = load(kv), 0
  while true do
    local r = m:submit { ids = prompt, max_tokens = spare, ignore_eos = true }
    if not admit(m, r) then break end
    n = n + 1
  end
  for _ = 1, 2 do m:step() end -- the prompts' last tokens, and one more
  return { kv = kv, m = m, n = n, rate = {}, pages = m.engine.cache.pages, tokens = m.engine.cache.tokens }
end

local function decode(x)
  local before, start = x.m:metrics().out_tokens, C.pl_now_s()
  for _ = 1, steps do x.m:step() end
  local s = C.pl_now_s() - start
  x.rate[#x.rate + 1] = (x.m:metrics().out_tokens - before) / s
end

local bf16, fp8 = saturate "bf16", saturate "fp8"
os.remove(scales_path)
for i = 1, rounds do
  if i % 2 == 1 then decode(bf16) decode(fp8) else decode(fp8) decode(bf16) end
end
local ratio = {}
for i = 1, rounds do ratio[i] = fp8.rate[i] / bf16.rate[i] end
local threads = bf16.m.dev:threads()
local read = require("pl.bench.kernels").read_gb_s(bf16.m.dev)
local cpu, commit, name = util.cpu(), util.commit(), path:match "[^/]+$"
local median, least, most = util.median(ratio)
local csv = util.csv("saturation", "date,commit,cpu,path,threads,model,act,context,budget_bytes,format,requests,pages,"
  .. "tokens,rounds,tok_s,step_ms,attend_share,read_gb_s,machine_read_gb_s,ratio")

print(("%s, %s, %s, act %s; contexts of %d tokens, a cache of %.1f MB; %d rounds of %d steps"):format(name, cpu,
  bf16.m.dev:describe(), act, context, budget / 1e6, rounds, steps))
print "format  requests  pages  tokens held  decode tok/s (min-max)      step ms  attend  GB/s read (machine's)"
for _, x in ipairs { bf16, fp8 } do
  local m = x.m:metrics()
  assert(m.n_waiting == 1 and m.preempted == 0 and m.n_running == x.n, "the cache was not full, or overfull")
  local rate, low, high = util.median(x.rate)
  x.m:prof { steps = steps }
  for _ = 1, steps do x.m:step() end
  local attend, f = 0, x.m:prof():summary()
  for _, o in ipairs(f.ops) do if o.name == "attend" then attend = attend + o.share end end
  local step_s = x.n / rate
  local gb = (x.m:plan().weight_bytes + x.n * context * x.m.engine.cache.bytes_per_token) / step_s / 1e9
  print(("%-7s %8d %6d %12d  %8.1f (%.1f-%.1f) %14.1f  %5.1f%%  %.1f (%.1f)"):format(x.kv, x.n, x.pages, x.tokens,
    rate, low, high, step_s * 1e3, attend * 100, gb, read))
  csv(os.date "!%Y-%m-%d", commit, cpu, x.m.dev:path(), threads, name, act, context, budget, x.kv, x.n, x.pages,
    x.tokens, rounds, ("%.1f"):format(rate), ("%.2f"):format(step_s * 1e3), ("%.3f"):format(attend),
    ("%.2f"):format(gb), ("%.1f"):format(read), x == fp8 and ("%.3f"):format(median) or 1)
end
print(("fp8 / bf16: %.3f (%.3f-%.3f) of the decode throughput, %.2f of the requests"):format(median, least, most,
  fp8.n / bf16.n))
assert(fp8.tokens == 2 * bf16.tokens, "fp8 holds exactly twice the tokens")
os.exit(0)
