-- What a long prompt must not do: while its text is tokenised, and while it is computed, requests that decode go on,
-- with at most one chunk of it between two of their tokens. Texts on their way can be cancelled, have their place,
-- their arrival and their deadline, and fail alone.
local ffi = require "ffi"
local abi, model, front = require "pl.abi", require "pl.model", require "pl.front"
local C = abi.C
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok
local function equal(a, b) return table.concat(a, " ") == table.concat(b, " ") end

-- tiny-llama, as if it were made for long contexts
local pid = io.popen("echo $PPID"):read "*n"
local tiny = ("%s/perilune-stall-%d"):format(os.getenv "TMPDIR" or "/tmp", pid)
os.execute(("rm -rf %s && cp -r tests/data/tiny-llama %s"):format(tiny, tiny))
do
  local f = assert(io.open(tiny .. "/config.json"))
  local config, n = f:read "*a":gsub('"max_position_embeddings": 1024', '"max_position_embeddings": 65536')
  f:close()
  assert(n == 1)
  f = assert(io.open(tiny .. "/config.json", "w"))
  f:write(config)
  f:close()
end
local function load(o)
  local opts = { batch = 4, queue = 8, tokens = 32, context = 2048, prefix = false }
  for k, v in pairs(o or {}) do opts[k] = v end
  return model.load(tiny, opts)
end
local function words(n, salt)
  local out = {}
  for i = 1, n do out[i] = ("w%d"):format((i * 7919 + salt * 104729) % 9973) end
  return table.concat(out, " ")
end
local function ids_of(n, salt)
  local out = {}
  for i = 1, n do out[i] = (i * 31 + salt * 17) % 1000 + 3 end
  return out
end
local function finish(m) while m:step() > 0 do end end

-- A front without threads: this test takes its letters and answers them when it likes.
local function by_hand(m)
  m.engine.front = front.open { tok = m:tokenizer(), threads = 0, letters = m.engine.places }
  return m.engine.front
end
local letter, answer = ffi.new "pl_letter", ffi.new "pl_letter"
local function take(f) return C.pl_mail_take(f.inbox, letter, 0, nil) == 1 end
local function reply(f, m)
  local ids = abi.array("int32_t", m:tokenizer():encode(ffi.string(letter.data, letter.n), { bos = true }))
  answer.id, answer.kind, answer.code, answer.n = letter.id, letter.kind, 0, ffi.sizeof(ids)
  answer.data = ffi.cast("char *", ids)
  assert(C.pl_mail_put(f.outbox, answer, 0, nil) == 0)
end

-- 1. A text that takes for ever: decodes go on, one token a step each; then it is computed beside them.
local text = words(200, 1)
assert(#text < model.long_text)
model.long_text = 500
do
  local m = load()
  local alone = m:generate { prompt = text, max_tokens = 5, ignore_eos = true }
  local f = by_hand(m)
  local decodes, tokens = {}, 0
  for i = 1, 3 do
    decodes[i] = m:submit { ids = ids_of(4 + i, i), max_tokens = 60, ignore_eos = true,
      on_token = function() tokens = tokens + 1 end }
  end
  m:step()
  local before_s = C.pl_now_s()
  local r = m:submit { prompt = text, max_tokens = 5, ignore_eos = true }
  verdict(r.tokenising and m:metrics().n_tokenising == 1 and m:metrics().n_waiting == 0, "it is tokenised")
  for _ = 1, 20 do
    local n = tokens
    m:step()
    verdict(tokens == n + 3, "every request that decodes gets its token, though a text is being tokenised")
  end
  verdict(take(f) and letter.kind == front.kinds.encode and ffi.string(letter.data, letter.n) == text, "its letter")
  local after_s = C.pl_now_s()
  reply(f, m)
  verdict(r.tokenising, "an answer is taken between steps")
  m.engine:receive()
  local q = ffi.new "pl_queue"
  C.pl_engine_look(m.engine.ptr, q)
  local record = q.waiting[0]
  verdict(q.n_waiting == 1 and record.id == r.id and record.n_prompt == alone.prompt_tokens
    and record.arrived_s >= before_s and record.arrived_s < after_s, "it arrived when it was submitted")
  local chunks = 0
  while not r.first_s do
    local n, done = tokens, m:metrics().prompt_tokens
    m:step()
    local computed = m:metrics().prompt_tokens - done
    verdict(tokens == n + 3 and computed <= 32 - 3, ("a step with %d tokens of a prompt"):format(computed))
    chunks = chunks + 1
  end
  verdict(chunks == math.ceil(alone.prompt_tokens / 29), chunks .. " chunks")
  finish(m)
  verdict(equal(r.ids, alone.ids) and r.prompt_tokens == alone.prompt_tokens, "the same answer as alone")
  for i = 1, 3 do verdict(decodes[i].finish == "length" and #decodes[i].ids == 60, "its neighbours' answers") end
  C.pl_letter_free(letter)
  m:close()
end

-- 2. Cancelled while it is a text: before and after somebody took it up.
do
  local m = load { batch = 1, queue = 1 }
  local f = by_hand(m)
  local a, b = m:submit { prompt = text }, m:submit { prompt = text .. "!" }
  local ok, why = pcall(m.submit, m, { prompt = text })
  verdict(not ok and tostring(why):find "no room for another request" ~= nil, "texts take places: " .. tostring(why))
  verdict(take(f), "the first is taken up")
  m.engine:cancel(a)
  m.engine:cancel(b)
  verdict(a.finish == "cancelled" and b.finish == "cancelled" and m:metrics().n_tokenising == 0, "cancelled")
  reply(f, m)
  C.pl_letter_free(letter)
  verdict(not take(f), "nobody takes up a text whose request has gone")
  local c = m:submit { ids = { 5, 6, 7 }, max_tokens = 3, ignore_eos = true }
  finish(m)
  verdict(c.finish == "length" and #a.ids == 0, "a late answer is nobody's")
  verdict(m:metrics().finished.cancelled == 2 and m:metrics().pages.owned == 0, "nothing is left")

  -- 3. The deadline counts from the submission; nothing else is there, so that the step waits for it
  local d = m:submit { prompt = text, deadline = 0.05 }
  local start = C.pl_now_s()
  verdict(m.engine:wait(0.01) == false, "nothing to do yet")
  finish(m)
  local s = C.pl_now_s() - start
  verdict(d.finish == "deadline" and s >= 0.04 and s < 20, "deadline after " .. s)

  -- 4. What goes wrong
  take(f)
  C.pl_letter_free(letter)
  local bad = m:submit { prompt = text }
  take(f)
  answer.id, answer.kind, answer.code, answer.n = letter.id, letter.kind, C.PL_ELIMIT, 8
  C.pl_letter_free(letter)
  answer.data = ffi.cast("char *", "too much")
  assert(C.pl_mail_put(f.outbox, answer, 0, nil) == 0)
  finish(m)
  verdict(bad.finish == "error" and bad.error == "too much", "the front's own error: " .. tostring(bad.error))
  m:close()
end

-- 5. Threads: many texts at once, beside decodes; each answer is the one that the text gets alone.
do
  local m = load { batch = 4, queue = 60, tokens = 64, fronts = 3 }
  local want, got, decodes = {}, {}, {}
  for i = 1, 12 do
    want[i] = m:generate { prompt = words(60 + i * 13, i), max_tokens = 4, ignore_eos = true }
  end
  for i = 1, 3 do decodes[i] = m:submit { ids = ids_of(5, i), max_tokens = 30, ignore_eos = true } end
  for i = 1, 36 do
    local k = (i - 1) % 12 + 1
    got[i] = m:submit { prompt = words(60 + k * 13, k), max_tokens = 4, ignore_eos = true }
    if i % 5 == 0 then m:step() end
  end
  local huge = m:submit { prompt = words(30000, 5) }
  local cancelled = m:submit { prompt = words(3000, 6) }
  m.engine:cancel(cancelled)
  verdict(m.engine.n_texts > 0, "texts are on their way")
  local ok, why = pcall(m.generate, m, { prompt = words(3000, 7) })
  verdict(not ok and tostring(why):find "generate: a prompt of %d+ tokens, the cache has room for 2048" ~= nil,
    "too long beside others: " .. tostring(why))
  finish(m)
  local right = 0
  for i = 1, 3 do if #decodes[i].ids == 30 then right = right + 1 end end
  for i = 1, 36 do if equal(got[i].ids, want[(i - 1) % 12 + 1].ids) then right = right + 1 end end
  verdict(right == 39, ("%d of 39 answers are as they are alone"):format(right))
  verdict(huge.finish == "error" and huge.error:find "^a prompt of %d+ tokens, the cache has room for 2048$" ~= nil,
    "a text that is too long: " .. tostring(huge.error))
  verdict(huge.prompt_tokens >= 30000, tostring(huge.prompt_tokens))
  verdict(m:metrics().finished.error == 2 and m:metrics().pages.owned == 0, "nothing is left")
  ok, why = pcall(m.generate, m, { prompt = words(3000, 7) })
  verdict(not ok and tostring(why):find "generate: a prompt of %d+ tokens" ~= nil, "too long alone: " .. tostring(why))

  -- other letters: ids back to text; a kind that nobody knows is an error, and the thread goes on
  local f = m.engine.front
  local ids = m:tokenizer():encode("hello there", {})
  local bytes = abi.array("int32_t", ids)
  f:ask(7, 99, 0, "?")
  f:ask(8, front.kinds.decode, 0, ffi.string(bytes, ffi.sizeof(bytes)))
  local seen = {}
  for _ = 1, 2 do
    assert(C.pl_mail_take(f.outbox, letter, 60, nil) == 1)
    seen[tonumber(letter.id)] = { letter.code, ffi.string(letter.data, letter.n) }
    C.pl_letter_free(letter)
  end
  verdict(seen[7][1] < 0 and seen[7][2] == "front: a letter of kind 99", "an unknown kind: " .. seen[7][2])
  verdict(seen[8][1] == 0 and seen[8][2] == m:tokenizer():decode(ids), "decoded: " .. seen[8][2])

  local zero = load { fronts = 0 }
  local at_once = zero:submit { prompt = words(300, 1), max_tokens = 1, ignore_eos = true }
  verdict(not at_once.tokenising and not zero.engine.front, "without front threads, the engine's own tokenises")
  verdict(#zero:incidents() == 0, "no incidents")
  zero:close()

  -- closed, and given up by the collector, with letters on their way
  for i = 1, 20 do m:submit { prompt = words(3000, i) } end
  m:close()
  local lost = load { fronts = 2 }
  for i = 1, 4 do lost:submit { prompt = words(20000, i) } end
  lost = nil -- luacheck: ignore
  collectgarbage()
  collectgarbage()
end
for _, bad in ipairs { "pl.nothing", "pl.json", "pl.names" } do
  local m = load()
  local ok, why = pcall(front.open, { tok = m:tokenizer(), threads = 2, letters = 4, module = bad })
  verdict(not ok and tostring(why):find(bad, 1, true) ~= nil, "a thread that does not start: " .. tostring(why))
  m:close()
end

-- 6. Ctrl-C ends a wait
do
  local m = load()
  os.execute(("(sleep 0.2; kill -INT %d) &"):format(pid))
  local ok, code = m.engine:wait(60)
  verdict(ok == nil and code == "ECANCEL", "interrupted")
  verdict(C.pl_host_interrupted(true) and m.engine:wait(0.01) == false, "and waits again")
  m:close()
end

-- 7. A long prompt under each policy: at most one chunk of it between two tokens of a request that decodes. 30,000
-- tokens take most of a minute of attention: `make check` sets PL_LONG.
for i, policy in ipairs(require("pl.policy").names) do
  local n, chunk = i == 1 and tonumber(os.getenv "PL_LONG") or 3000, i == 1 and 512 or 64
  local m = load { batch = 9, queue = 0, tokens = chunk, cache_bytes = (n + 8 * 400) * 1100, context = n + 200 }
  m:set_policy(policy)
  local most, gaps, decodes = 0, 0, {}
  for k = 1, 8 do
    local last
    decodes[k] = m:submit { ids = ids_of(5, k), max_tokens = 100, ignore_eos = true, on_token = function()
      local now = m:metrics().prompt_tokens
      if last then most, gaps = math.max(most, now - last), gaps + 1 end
      last = now
    end }
  end
  m:step()
  local r = m:submit { ids = ids_of(n, 3), max_tokens = 1, ignore_eos = true }
  local steps = 0
  while m.engine.n_open > 0 do
    m:step()
    steps = steps + 1
  end
  verdict(r.finish == "length" and #r.ids == 1, policy .. ": the long one's answer")
  verdict(most > 0 and most <= chunk - 8 and gaps == 8 * 99 and steps >= n / chunk,
    ("%s: %d tokens of a prompt between two tokens of a decode, %d gaps"):format(policy, most, gaps))
  for k = 1, 8 do verdict(#decodes[k].ids == 100, policy .. ": the others' answers") end
  m:close()
end

-- 8. A load with pauses sleeps in them.
do
  local m, waits = load(), 0
  local wait = m.engine.wait
  function m.engine.wait(...)
    waits = waits + 1
    return wait(...)
  end
  local f = require("pl.bench").run(m, { requests = 4, rate = 10, input = 5, output = 2 })
  verdict(f.requests == 4 and waits >= 1 and waits <= 8, ("%d waits for 4 requests"):format(waits))
  m:close()
end
os.execute("rm -rf " .. tiny)

verdicts.done()
