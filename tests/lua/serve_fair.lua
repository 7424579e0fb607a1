-- A long list of embeddings beside others: what a step takes of it, and how many steps somebody waits who comes while
-- it is at work. Counted in steps and tokens. Server and clients are one process: the test turns the server's loop.
local cjson = require "cjson"
local client = dofile "tests/http_client.lua"
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

local CHUNK, TOKENS, INPUT, OWN = 32, 64, 60, 10
local s = require("pl.serve").open({ model = "tests/data/tiny-llama", name = "tiny", context = 1000, socket = false,
  load = { batch = 8, queue = 32, tokens = TOKENS, chunk = CHUNK, prefix = false },
  http = { port = 0, log_fd = -1 } }, print)
local engine = s.engine_model.engine
local function ids(n, seed)
  local t = {}
  for i = 1, n do t[i] = (i * 7 + seed) % 200 + 3 end
  return t
end
local function ask(path, body)
  local c = client.dial(s.port or s.http.port)
  c:ask("POST", path, cjson.encode(body))
  return c
end
local function until_(done, what)
  for _ = 1, 5000 do
    if done() then return end
    s:turn()
  end
  error("never: " .. what)
end
-- the job of a request that has just been sent
local function job_of(seed)
  local found
  until_(function()
    for _, job in pairs(s.jobs) do if job.o.seed == seed then found = job end end
    return found
  end, "a job")
  return found
end

local list = {}
for i = 1, 300 do list[i] = ids(INPUT, i) end
local function list_at_work()
  local c = ask("/v1/embeddings", { input = list, encoding_format = "base64" })
  local function lists()
    local n = 0
    for _, job in pairs(s.jobs) do if job.o.kind == "embedding" then n = n + 1 end end
    return n
  end
  local before = lists()
  until_(function() return lists() > before end, "the list is read") -- by a front thread, which takes its time
  local from = engine:metrics().prompt_tokens
  until_(function() return engine:metrics().prompt_tokens > from + 3 * INPUT end, "the list is at work")
  return c
end

-- turns until somebody who comes now has a first token
local seed = 0
local function turns_of_newcomer()
  seed = seed + 1
  local c = ask("/v1/completions", { prompt = ids(OWN, seed), max_tokens = 3, seed = seed, ignore_eos = true })
  local job, n = job_of(seed), 0
  while #job.choices[1].request.ids == 0 and n < 500 do
    s:turn()
    n = n + 1
  end
  until_(function() return c:ready() end, "its answer")
  c:close()
  return n
end

-- 1. Beside one that decodes: a token of it each step, and no more than a chunk of the list.
local decodes = ask("/v1/completions", { prompt = ids(OWN, 99), max_tokens = 900, ignore_eos = true, seed = 1000 })
local neighbour = job_of(1000).choices[1].request
until_(function() return #neighbour.ids > 0 end, "a neighbour")
local embeds = list_at_work()
local most, least, held = 0, math.huge, 0
for _ = 1, 60 do
  local before, n = engine:metrics().prompt_tokens, #neighbour.ids
  s:turn()
  most, least = math.max(most, engine:metrics().prompt_tokens - before), math.min(least, #neighbour.ids - n)
  held = math.max(held, engine.embed_tokens)
end
verdict(most <= CHUNK and most > CHUNK / 2, ("a step takes %d tokens of a list, want at most %d"):format(most, CHUNK))
verdict(least == 1, ("a neighbour gets %d tokens a step"):format(least))
verdict(held <= CHUNK + INPUT, ("%d tokens of the list are at the engine, want at most %d"):format(held, CHUNK + INPUT))
local bound = math.ceil((CHUNK + INPUT + OWN) / (CHUNK - 1)) + 1
for _ = 1, 3 do
  local n = turns_of_newcomer()
  verdict(n <= bound, ("somebody who comes waits %d steps, want at most %d"):format(n, bound))
end

-- 2. Two lists have no more than one; each goes on.
local second = list_at_work()
for _ = 1, 20 do
  s:turn()
  verdict(engine.embed_tokens <= CHUNK + 2 * INPUT and engine.n_embeds >= 2, "two lists: " .. engine.embed_tokens)
end
local n = turns_of_newcomer()
bound = math.ceil((CHUNK + 2 * INPUT + OWN) / (CHUNK - 1)) + 1
verdict(n <= bound, ("beside two lists: %d steps, want at most %d"):format(n, bound))
second:close()

-- 3. Nobody else: steps are full, and who comes waits for two.
decodes:close()
until_(function() return engine.n_open == engine.n_embeds and engine.n_embeds > 0 end, "the list alone")
for _ = 1, 5 do s:turn() end
local before = engine:metrics()
for _ = 1, 20 do s:turn() end
local full = (engine:metrics().prompt_tokens - before.prompt_tokens) / (engine:metrics().steps - before.steps)
verdict(full > 0.9 * TOKENS, ("a list alone: %.1f tokens a step, want nearly %d"):format(full, TOKENS))
n = turns_of_newcomer()
bound = math.ceil((TOKENS + INPUT + OWN) / TOKENS) + 2
verdict(n <= bound, ("somebody who comes to a list alone waits %d steps, want at most %d"):format(n, bound))

-- and its answer is whole
until_(function() return embeds:ready() end, "the list's answer")
local status, h = embeds:head()
-- the rest of it comes while the loop turns
while #embeds.held < tonumber(h["content-length"]) do
  s:turn()
  if embeds:ready() then embeds:more(0) end
end
local t = cjson.decode(embeds:body(h))
verdict(status == 200 and #t.data == 300 and t.data[300].index == 299, "300 embeddings")
verdict(t.usage.prompt_tokens == 300 * INPUT, "their tokens")
verdict(engine.n_embeds == 0 and engine.embed_tokens == 0, "nothing is left")
embeds:close()
s.http:close()
s.engine_model:close()
verdicts.done()
