-- stall.lua MODEL [ROUNDS]: what a long prompt costs the requests that are being answered: gaps between two tokens of
-- each of eight that decode, while nothing else comes; while texts of 30,000 tokens come, tokenised by a front thread,
-- or by the engine's own as without one (they end as too long); and while a prompt of 3,000 tokens is computed, in
-- chunks of 512 and of 64. In turn. Run by pl-lua; appends rows to bench/results/stall.csv.
local abi, model, util = require "pl.abi", require "pl.model", dofile "bench/util.lua"
local C = abi.C
local path, rounds = arg[1], tonumber(arg[2] or 3)
local DECODES, OUT, LONG, PROMPT = 8, 48, 30000, 3000
local paragraph = "The engine goes on while a text that somebody else sent is turned into tokens, one after another, "
  .. "on a thread of its own; 12 of them fit in a second.\n"

-- gaps in ms of one run; during(step) is called between steps
local function gaps_of(m, list, during)
  local rs = {}
  for i = 1, DECODES do
    local last
    rs[i] = m:submit { ids = { 300 + i, 40 + i, 50 + i }, max_tokens = OUT, ignore_eos = true, on_token = function()
      local now = C.pl_now_s()
      if last then list[#list + 1] = (now - last) * 1000 end
      last = now
    end }
  end
  local n, others = 0, {}
  local function going()
    for _, r in ipairs(rs) do if not r.finish then return true end end
  end
  while going() do
    n = n + 1
    if during then others[#others + 1] = during(n) end
    m:step()
  end
  for _, r in ipairs(others) do m.engine:cancel(r) end
  while m:step() > 0 do end
end

local function quantile(list, q) return list[math.max(1, math.ceil(q * #list))] end

local csv = util.csv("stall", "date,commit,cpu,model,case,step_tokens,gaps,p50_ms,p99_ms,max_ms")
local name, commit, cpu = path:match "[^/]+$", util.commit(), util.cpu()
print(("%s: gaps between the tokens of %d requests, ms"):format(name, DECODES))
print(("%-54s %6s %6s %8s %8s %8s"):format("meanwhile", "chunk", "gaps", "p50", "p99", "max"))
for _, chunk in ipairs { 512, 64 } do
  local m = model.load(path, { batch = DECODES + 1, tokens = chunk, prefix = false, queue = 100,
    context = PROMPT + 64 })
  local tok = m:tokenizer()
  local text = paragraph:rep(math.ceil(LONG / #tok:encode(paragraph)))
  local n_text = #tok:encode(text)
  local prompt = {}
  for i = 1, PROMPT do prompt[i] = 300 + i * 37 % 20000 end
  m.engine:open_front(tok)
  local cases = { { "nothing" } }
  if chunk == 512 then
    cases[2] = { ("a text of %d tokens every 8 steps, front"):format(n_text), function(n)
      if n % 8 == 4 then return m:submit { prompt = text, max_tokens = 1 } end
    end }
    cases[3] = { ("a text of %d tokens every 8 steps, no front"):format(n_text), function(n)
      if n % 8 == 4 then pcall(m.generate, m, { ids = tok:encode(text), max_tokens = 1 }) end
    end }
  end
  cases[#cases + 1] = { ("a prompt of %d tokens is computed"):format(PROMPT), function(n)
    if n == 4 then return m:submit { ids = prompt, max_tokens = 1, ignore_eos = true } end
  end }
  gaps_of(m, {}, nil) -- warm
  for _ = 1, rounds do
    for _, c in ipairs(cases) do
      c.list = c.list or {}
      gaps_of(m, c.list, c[2])
    end
  end
  for _, c in ipairs(cases) do
    table.sort(c.list)
    local p50, p99, most = quantile(c.list, 0.5), quantile(c.list, 0.99), c.list[#c.list]
    print(("%-54s %6d %6d %8.1f %8.1f %8.1f"):format(c[1], chunk, #c.list, p50, p99, most))
    csv(os.date "%Y-%m-%d", commit, cpu, name, (c[1]:gsub(",", ";")), chunk, #c.list, ("%.2f"):format(p50),
      ("%.2f"):format(p99), ("%.2f"):format(most))
  end
  m:close()
end
os.exit(0)
