-- perilune run: generate text from a prompt. No chat template is applied: the text goes in as it is.
local common = require "pl.cli.common"
local M = { name = "run", takes = "MODEL", about = "generate text from a prompt" }

function M.options(p)
  common.compute(p)
  common.tiers(p)
  common.prompt(p)
  p:option("--max-tokens", "At most so many tokens."):convert(common.whole(0)):default "256":argname "N"
  p:flag("--ignore-eos", "Do not stop at the model's end tokens.")
  common.sampling(p)
  common.prof(p)
  common.json(p)
end

-- Bytes: what of the process is in memory now and at most was, beside what the weights (as they are packed), the cache
-- and the activations need.
local function memory(m)
  local status, p = require("pl.file").read("/proc/self/status", 2 ^ 20) or "", m:plan()
  local function kb(key) return (tonumber(status:match(key .. ":%s*(%d+) kB")) or 0) * 1024 end
  return { resident = kb "VmRSS", peak = kb "VmHWM", weights = p.weight_bytes, cache = p.cache_bytes,
    activations = p.activation_bytes }
end

local function rate(n, s) return s > 0 and n / s or 0 end

function M.run(o)
  common.only_drawn(o)
  local prompt = common.prompt_of(o)
  local m = require("pl.model").open(o.model, common.load_options(o, { batch = 1 }))
  local ids, most = common.ids_of(m, prompt)
  m:start(math.min(#ids + o.max_tokens, most))
  common.start_prof(o, m)
  local show
  if not o.json then
    show = function(s)
      common.written(io.write(s) and io.flush())
    end
    if type(prompt) == "string" then show(prompt) end
  end
  local g = m:generate(common.sampling_of(o, { ids = ids, max_tokens = o.max_tokens, ignore_eos = o.ignore_eos,
    stream = show }))
  local t = { load_s = m.load_s, prefill_s = g.prefill_s, decode_s = g.decode_s,
    prefill_tok_s = rate(g.prompt_tokens, g.prefill_s),
    decode_tok_s = rate(math.max(#g.ids - 1, 0), g.decode_s) }
  if o.json then
    local json = require "pl.json"
    print(json.encode { prompt_tokens = g.prompt_tokens, tokens = json.list(g.ids), timings = t,
      text = g.text or json.null, finish_reason = g.finish, act = m.pool.act, path = m.dev:path(),
      threads = m.dev:threads(), memory = memory(m) })
  else
    common.written(io.write "\n" and io.flush())
    io.stderr:write(("\n%s, act %s: load %.2f s; "):format(m.dev:describe(), m.pool.act, t.load_s))
    io.stderr:write(("prefill %d tokens, %.1f tok/s; "):format(g.prompt_tokens, t.prefill_tok_s))
    io.stderr:write(("decode %d tokens, %.1f tok/s; %s\n"):format(#g.ids, t.decode_tok_s, g.finish))
  end
  common.end_prof(o, m)
  local dev = m.dev
  m:close()
  dev:close()
  if g.finish == "error" then
    error(require("pl.err").new("the request ended with an error: its logits or its sampling options have no use"), 0)
  end
  return g.finish == "cancelled" and require("pl.cli").INTERRUPTED or 0
end

return M
