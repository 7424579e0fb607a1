-- Tenants and places: one that floods the server leaves the others theirs. Server and clients are one process: the test
-- turns the server's loop.
local cjson = require "cjson"
local client = dofile "tests/http_client.lua"
local verdicts = dofile "tests/verdicts.lua"
local eq, has = verdicts.eq, verdicts.has

local BATCH, QUEUE = 2, 18
local PLACES = BATCH + QUEUE
-- of 20 places: shares 3 and 1 make 7 and 2 sure, with a third share of 1 they are 6, 2 and 2
local keys = os.tmpname()
local function write_keys(text)
  local f = assert(io.open(keys, "w"))
  f:write(text)
  f:close()
end
local KEYS = "key-of-alice alice\nkey-of-bob bob\n"
write_keys(KEYS)
local s = require("pl.serve").open({ model = "tests/data/tiny-llama", name = "tiny", context = 1000, socket = false,
  keys = keys, tenants = { alice = { share = 3 }, bob = { share = 1 } },
  load = { batch = BATCH, queue = QUEUE, prefix = false }, http = { port = 0, log_fd = -1 } }, print)
local engine = s.engine_model.engine

local function ask(who, o, path)
  local c = assert(client.dial(s.http.port))
  o.model = "tiny"
  c:ask("POST", path or "/v1/completions", cjson.encode(o), ("Authorization: Bearer key-of-%s\r\n"):format(who))
  return c
end
local function until_(done, what)
  local limit = os.time() + 120
  while not done() do
    if os.time() > limit then error("never: " .. what) end
    s.restless = true -- an answer is no letter: do not sleep until one
    s:turn()
  end
end
local function jobs()
  local n = 0
  for _ in pairs(s.jobs) do n = n + 1 end
  return n
end
-- Requests that stay until they are closed, as the engine is paused; those that are refused have an answer. Returns how
-- many run or wait, and a refusal.
local open = {}
local function flood(who, n, o, path)
  s.paused = true
  local taken, said = 0, nil
  for _ = 1, n do
    local body = { prompt = { 5, 6, 7 }, max_tokens = 900, ignore_eos = true }
    for k, v in pairs(o or {}) do body[k] = v end
    local before, c = jobs(), ask(who, body, path)
    until_(function() return c:ready() or jobs() > before end, "a request is taken or refused")
    if c:ready() then
      local status, h = c:head()
      local text = c:body(h)
      eq(status, 429, who .. " too many")
      eq(h["retry-after"], "1", "when to come again")
      said = cjson.decode(text).error.message
      c:close()
    else
      open[#open + 1] = c
      taken = taken + 1
    end
  end
  return taken, said
end
local function leave()
  for _, c in ipairs(open) do c:close() end
  open = {}
  s.paused = false
  until_(function() return engine.n_open == 0 and s.n_asked == 0 end, "all have gone")
  for t, n in pairs(engine.of_tenant) do eq(n, 0, "requests of tenant " .. t) end
  for t, n in pairs(s.asked_of) do eq(n, 0, "bodies of tenant " .. t) end
end

-- shares are known from a tenant's first request on
flood("bob", 1)
flood("alice", 1)
leave()
-- small bodies, which are read by the loop, and large ones, which front threads read
local long = {}
for i = 1, 700 do long[i] = i % 200 + 3 end
for what, o in pairs { small = {}, large = { prompt = long, max_tokens = 250 } } do
  local n, said = flood("alice", 30, o)
  eq(n, PLACES - 2, what .. ": alice's")
  has(said, "no room for another request of this tenant: 18 run or wait", what .. ": what alice hears")
  n, said = flood("bob", 5, o)
  eq(n, 2, what .. ": what is left for bob")
  has(said, "no room for another request: 20 run or wait", what .. ": what bob hears")
  leave()
  eq(flood("bob", 30, o), PLACES - 7, what .. ": bob's, if he is first")
  eq(flood("alice", 30, o), 7, what .. ": what is left for alice")
  leave()
end

-- an answer with several choices has all its places, or none
eq(flood("alice", 4, { n = 5 }), 3, "answers of five, of 18 places")
eq(engine.n_open, 15, "places that they have")
eq(flood("alice", 5), 3, "single ones beside them")
leave()

-- a list of embeddings takes turns instead: it never has what is kept
local list = {}
for i = 1, 60 do list[i] = { i, i + 1, i + 2 } end
eq(flood("alice", 18), 18, "alice's")
s.paused = false
local c = ask("bob", { input = list }, "/v1/embeddings")
until_(function() return c:ready() end, "bob's list is answered")
local status = c:head()
eq(status, 200, "bob's list")
c:close()
leave()

-- keys that are read again bring tenants
write_keys(KEYS .. "key-of-carol carol\n")
s:reload()
flood("carol", 1)
leave()
eq(flood("alice", 30), PLACES - 4, "alice's, beside two")
eq(flood("bob", 5), 2, "bob's, beside two")
eq(flood("carol", 5), 2, "carol's")
leave()

os.remove(keys)
s.http:close()
s.engine_model:close()
verdicts.done()
