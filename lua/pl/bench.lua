-- A load generator over the engine of a loaded model: requests that come at random times (open loop) or as soon as one
-- of `concurrency` is done (closed loop), with lengths by distribution and made-up tokens.
local abi, err, quantiles, simulate = require "pl.abi", require "pl.err", require "pl.quantiles", require "pl.simulate"
local C = abi.C
local M = {}

M.defaults = { requests = 100, rate = 0, concurrency = 0, input = 200, output = 100, lengths = "fixed", tenants = 1,
  prefixes = 16, prefix_tokens = 128, prefix_share = 0, seed = 1 }

--- Run a load against m. o: what M.defaults names, on_step = function(number of steps) between two steps. Returns the
--- figures; requests keep their tokens in figures.answers, in the order of the trace.
function M.run(m, o)
  for k, v in pairs(M.defaults) do if o[k] == nil then o[k] = v end end
  local trace, prompt = simulate.generate(o), simulate.prompts(m.trace.vocab, m.context)
  local ttft, tpot, itl, e2e = quantiles.new(), quantiles.new(), quantiles.new(), quantiles.new()
  local f = { requests = 0, finished = {}, input_tokens = 0, output_tokens = 0, refused = 0, shortened = 0,
    answers = {} }
  local steps, open, n, next_request = 0, 0, 0, trace()
  local pending = {} -- requests that are open
  local start = C.pl_now_s()
  local function submit(r)
    n = n + 1
    local ids, list = prompt(r, n), {}
    for i = 1, math.min(r.input, m.context - 1) do list[i] = ids[i - 1] end
    local came, last = C.pl_now_s(), nil
    local request
    local ok, what = pcall(function()
      request = m:submit { ids = list, max_tokens = r.output, ignore_eos = true, tenant = r.tenant,
        on_token = function()
          local now = C.pl_now_s()
          if last then itl.add(now - last) else ttft.add(now - came) end
          last = now
        end }
    end)
    if not ok then
      if not (err.is(what) and what.code == "EFULL") then error(what, 0) end
      f.refused = f.refused + 1
      return
    end
    if r.input + r.output > m.context then f.shortened = f.shortened + 1 end
    f.requests, f.input_tokens, open = f.requests + 1, f.input_tokens + #list, open + 1
    f.answers[n], pending[request] = request, came
  end
  local function settle()
    for r, came in pairs(pending) do
      if r.finish then
        pending[r], open = nil, open - 1
        f.finished[r.finish] = (f.finished[r.finish] or 0) + 1
        f.output_tokens = f.output_tokens + #r.ids
        e2e.add(r.last_s - came)
        if #r.ids > 1 then tpot.add((r.last_s - r.first_s) / (#r.ids - 1)) end
      end
    end
  end
  while next_request or open > 0 do
    local now = C.pl_now_s() - start
    while next_request and next_request.t <= now and (o.concurrency == 0 or open < o.concurrency) do
      submit(next_request)
      next_request = trace()
    end
    if open > 0 then
      m:step()
      steps = steps + 1
      settle()
      if o.on_step then o.on_step(steps) end
    elseif m.engine:wait(next_request.t - now) == nil then
      C.pl_host_interrupted(true)
      err.raise("interrupted", nil, "ECANCEL")
    end
  end
  local s = C.pl_now_s() - start
  f.seconds, f.steps, f.engine, f.successful = s, steps, m:metrics(), f.finished.length or 0
  f.request_s, f.output_tok_s = f.requests / s, f.output_tokens / s
  f.total_tok_s = (f.input_tokens + f.output_tokens) / s
  f.ttft_s, f.tpot_s, f.itl_s, f.e2e_s = ttft.figures(), tpot.figures(), itl.figures(), e2e.figures()
  return f
end

--- Latency and throughput against load: an SVG drawing of several runs. by: "clients" or "rate".
function M.svg(list, by)
  local most = 0
  for _, f in ipairs(list) do most = math.max(most, f[by]) end
  local function line(name, key, q)
    local l = { name = name }
    for i, f in ipairs(list) do l[i] = { f[by], q and f[key][q] * 1000 or f[key] } end
    return l
  end
  local span = math.max(most, 1e-9)
  local axis = ("%g %s"):format(most, by == "rate" and "requests a second" or "clients")
  local plots = { { title = "output, tokens a second", lines = { line(nil, "output_tok_s") }, span = span,
    axis = axis } }
  for _, p in ipairs { { "time to first token, ms", "ttft_s" }, { "between tokens, ms", "itl_s" },
    { "whole request, ms", "e2e_s" } } do
    plots[#plots + 1] = { title = p[1], lines = { line("median", p[2], "p50"), line("p99", p[2], "p99") },
      span = span, axis = axis }
  end
  return require("pl.svg").draw(plots)
end

--- The figures in the block that vLLM's `bench serve` prints.
function M.text(f)
  local out = { "============ Serving Benchmark Result ============" }
  local function line(name, value, format)
    out[#out + 1] = ("%-40s %-10s"):format(name, (format or "%.2f"):format(value))
  end
  line("Successful requests:", f.successful, "%d")
  if f.failed then line("Failed requests:", f.failed, "%d") end
  if (f.refused or 0) > 0 then line("Refused requests (no room in the queue):", f.refused, "%d") end
  if (f.shortened or 0) > 0 then line("Requests cut to fit the context:", f.shortened, "%d") end
  line("Benchmark duration (s):", f.seconds)
  line("Total input tokens:", f.input_tokens, "%d")
  line("Total generated tokens:", f.output_tokens, "%d")
  line("Request throughput (req/s):", f.request_s)
  line("Output token throughput (tok/s):", f.output_tok_s)
  line("Total Token throughput (tok/s):", f.total_tok_s)
  for _, part in ipairs { { "---------------Time to First Token----------------", "TTFT", f.ttft_s },
    { "-----Time per Output Token (excl. 1st token)------", "TPOT", f.tpot_s },
    { "---------------Inter-token Latency----------------", "ITL", f.itl_s } } do
    out[#out + 1] = part[1]
    line(("Mean %s (ms):"):format(part[2]), part[3].mean * 1000)
    line(("Median %s (ms):"):format(part[2]), part[3].p50 * 1000)
    line(("P99 %s (ms):"):format(part[2]), part[3].p99 * 1000)
  end
  out[#out + 1] = "=================================================="
  return table.concat(out, "\n")
end

return M
