-- integrity.lua MODEL [ROUNDS] [REQUESTS] [CONCURRENCY] [IN] [OUT]: what the integrity of the cache costs where
-- requests are served: off; tags of pages (the default); digests of full pages too, without and with a scrub of 1 % and
-- 10 % of the time. One engine each in one process, one closed-loop load (pl.bench) after another in changing order;
-- per round the ratio to `off` of throughput and of the 95th percentile between tokens. Prints medians over rounds and
-- appends rows to bench/results/integrity.csv. Run by pl-lua.
local model, bench, util = require "pl.model", require "pl.bench", dofile "bench/util.lua"
local path, rounds = arg[1], tonumber(arg[2] or 5)
local requests, concurrency = tonumber(arg[3] or 24), tonumber(arg[4] or 8)
local input, output = tonumber(arg[5] or 96), tonumber(arg[6] or 64)
local act = os.getenv "ACT" or "bf16"

local variants = { { name = "off", check = "off" }, { name = "pages", check = "pages" },
  { name = "digest", check = "pages+digest", scrub = 0 }, { name = "digest, scrub 1 %", check = "pages+digest",
    scrub = 0.01 }, { name = "digest, scrub 10 %", check = "pages+digest", scrub = 0.1 } }
for _, v in ipairs(variants) do
  local m = model.open(path, { act = act, batch = concurrency, tokens = 512, context = input + output,
    queue = requests })
  m.recipe.integrity = { check = v.check, scrub = v.scrub }
  v.m, v.rate, v.p95, v.rate_ratio, v.p95_ratio = m:start(), {}, {}, {}, {}
end

for round = 0, rounds do -- the first one warms up
  for i = 1, #variants do
    local v = variants[(i + round) % #variants + 1]
    v.f = bench.run(v.m, { requests = requests, concurrency = concurrency, input = input, output = output,
      seed = round + 1, lengths = "uniform" })
  end
  for _, v in ipairs(variants) do
    if round > 0 then
      local off = variants[1].f
      v.rate[round], v.p95[round] = v.f.output_tok_s, v.f.itl_s.p95 * 1e3
      v.rate_ratio[round], v.p95_ratio[round] = v.f.output_tok_s / off.output_tok_s, v.f.itl_s.p95 / off.itl_s.p95
    end
  end
end

local cpu, commit, name = util.cpu(), util.commit(), path:match "[^/]+$"
local csv = util.csv("integrity", "date,commit,cpu,path,threads,model,act,requests,concurrency,in,out,rounds,check,"
  .. "scrub,tok_s,p95_ms,tok_s_ratio,p95_ratio")
print(("%s, %s, %s, act %s; %d requests, %d at a time, about %d in and %d out, median of %d rounds (min-max)"):format(
  name, cpu, variants[1].m.dev:describe(), act, requests, concurrency, input, output, rounds))
print "integrity             tok/s   of off                p95 between tokens   of off"
for _, v in ipairs(variants) do
  local scrubbed = v.m:metrics().scrubbed_pages
  assert((scrubbed > 0) == ((v.scrub or 0) > 0), "the scrub ran where it should, and only there")
  local rate, p95 = util.median(v.rate), util.median(v.p95)
  local r, r_low, r_high = util.median(v.rate_ratio)
  local p, p_low, p_high = util.median(v.p95_ratio)
  print(("%-19s %7.1f   %.3f (%.3f-%.3f)   %15.2f ms   %.3f (%.3f-%.3f)"):format(v.name, rate, r, r_low, r_high, p95,
    p, p_low, p_high))
  csv(os.date "!%Y-%m-%d", commit, cpu, v.m.dev:path(), v.m.dev:threads(), name, act, requests, concurrency, input,
    output, rounds, v.check, v.scrub or "", ("%.1f"):format(rate), ("%.3f"):format(p95), ("%.4f"):format(r),
    ("%.4f"):format(p))
end
os.exit(0)
