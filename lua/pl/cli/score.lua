-- perilune score: how likely a text is, and what comes after it.
local common = require "pl.cli.common"
local M = { name = "score", takes = "MODEL", about = "likelihood of a text, and the likeliest next tokens" }

function M.options(p)
  common.compute(p)
  common.prompt(p)
  p:option("--top", "So many of the likeliest next tokens."):convert(common.whole(1)):default "20":argname "K"
  common.json(p)
end

function M.run(o)
  local prompt = common.prompt_of(o)
  local m = require("pl.model").open(o.model, common.load_options(o, { batch = 64, tokens = 64 }))
  local ids = common.ids_of(m, prompt)
  m:start(#ids)
  local r = m:score(ids, o.top)
  if r.logsumexp ~= r.logsumexp or r.nll and r.nll ~= r.nll then
    error(require("pl.err").new("score: the logits are no numbers (damaged weights, a recipe's error, or scales of the"
      .. " cache that are not the model's)"), 0)
  end
  if o.json then
    local json, top = require "pl.json", {}
    for i, t in ipairs(r.top) do top[i] = json.list(t) end
    print(json.encode { tokens = json.list(r.tokens), nll = r.nll or json.null, top = json.list(top),
      logsumexp = r.logsumexp, act = m.pool.act, path = m.dev:path() })
  else
    local nll = r.nll and ("%.4f"):format(r.nll) or "-"
    print(("%d tokens, nll %s nats a token, act %s"):format(#r.tokens, nll, m.pool.act))
    local ok, tok = pcall(m.tokenizer, m)
    for _, t in ipairs(r.top) do
      print(("%8d  %9.4f  %7.4f  %s"):format(t[1], t[2], math.exp(t[2] - r.logsumexp),
        ok and ("%q"):format(tok:decode { t[1] }):gsub("\\\n", "\\n") or ""))
    end
  end
  local dev = m.dev
  m:close()
  dev:close()
  return 0
end

return M
