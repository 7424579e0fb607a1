-- Bodies beside decodes: what a body asks is read in front threads, so that one that is long, or whose template takes
-- all the steps that it may, costs those that decode nothing; its client may go away meanwhile; the answer is the one
-- that a small body gets. Server and clients are one process: the test turns the server's loop.
local cjson, ffi = require "cjson", require "ffi"
local abi, front, requests = require "pl.abi", require "pl.front", require "pl.requests"
local client = dofile "tests/http_client.lua"
local C = abi.C
local verdicts = dofile "tests/verdicts.lua"
local verdict = verdicts.ok

local template = os.tmpname()
local f = assert(io.open(template, "w"))
f:write "{% if messages[0].content == 'slow' %}{% for i in range(3000) %}{% for j in range(3000) %}{% endfor %}"
f:write "{% endfor %}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
f:close()

local function open(more)
  local load = { batch = 8, queue = 16, tokens = 64, prefix = false }
  for k, v in pairs(more or {}) do load[k] = v end
  return require("pl.serve").open({ model = "tests/data/tiny-llama", name = "tiny", chat_template = template,
    context = 1000, socket = false, load = load, http = { port = 0, log_fd = -1 } }, print)
end
local s = open()
local engine, tok = s.engine_model.engine, s.engine_model:tokenizer()

local function until_(done, what)
  for _ = 1, 5000 do
    if done() then return true end
    s:turn()
  end
  error("never: " .. what)
end
local function ask(path, body)
  local c = client.dial(s.http.port)
  c:ask("POST", path, type(body) == "table" and cjson.encode(body) or body)
  return c
end
-- the answer of a request, while the loop turns; and the tokens of others meanwhile
local function answer(c)
  local from = engine:metrics().out_tokens
  local p = ffi.new("struct test_poll[1]", { { fd = c.fd, events = 1 } })
  until_(function() return ffi.C.poll(p, 1, 0) == 1 end, "an answer")
  local n = engine:metrics().out_tokens - from
  local status, h = c:head()
  local body = cjson.decode(c:body(h))
  c:close()
  return status, body, n
end
local decodes = {}
local function decode_again()
  for i = 1, 2 do
    if decodes[i] then decodes[i]:close() end
  end
  until_(function() return next(s.jobs) == nil end, "the clients are gone")
  for i = 1, 2 do
    decodes[i] = ask("/v1/completions", { prompt = "request " .. i, max_tokens = 900, ignore_eos = true, seed = i })
  end
  until_(function() return engine:metrics().n_running == 2 end, "two that decode")
  s:turn()
end

-- 1. A front that takes its time: by hand.
local text = {}
for i = 1, 150 do text[i] = ("w%d"):format(i * 7919 % 9973) end
text = table.concat(text, " ")
local long = { prompt = text, max_tokens = 5, temperature = 0, padding = ("x"):rep(4000) }
local _, alone = answer(ask("/v1/completions", long))
local _, small = answer(ask("/v1/completions", { prompt = text, max_tokens = 5, temperature = 0 }))
verdict(alone.choices and alone.choices[1].text == small.choices[1].text and
  alone.usage.prompt_tokens == small.usage.prompt_tokens, "a long body has the answer of a small one")
local own = engine.front
engine.front = front.open { tok = tok, threads = 0, letters = engine.places }
decode_again()
local c, gone = ask("/v1/completions", long), ask("/v1/chat/completions", { messages = { { role = "user",
  content = "hello" } } })
until_(function() return s.n_asked == 2 end, "both are with the front")
for _ = 1, 20 do
  local n = engine:metrics().out_tokens
  s:turn()
  verdict(engine:metrics().out_tokens == n + 2, "a token for each that decodes, though bodies are being read")
end
gone:close()
until_(function() return s.n_asked == 1 end, "one has gone")
local letter, reply = ffi.new "pl_letter", ffi.new "pl_letter"
verdict(C.pl_mail_take(engine.front.inbox, letter, 0, nil) == 1 and letter.kind == front.kinds.request
  and letter.code == requests.kinds.completion, "its letter")
local data, code = requests.answer(letter, function() return tok end)
reply.id, reply.kind, reply.code, reply.n, reply.data = letter.id, letter.kind, code, #data, ffi.cast("char *", data)
verdict(C.pl_mail_take(engine.front.inbox, letter, 0, nil) == 0, "and no other: who has gone is not read")
assert(C.pl_mail_put(engine.front.outbox, reply, 0, nil) == 0)
C.pl_letter_free(letter)
local status, body = answer(c)
verdict(status == 200 and body.choices[1].text == alone.choices[1].text, "and then it is answered")
-- what the front did not expect is a 500, and nobody else's
c = ask("/tokenize", { prompt = ("y"):rep(3000) })
until_(function() return s.n_asked == 1 end, "the front has it")
assert(C.pl_mail_take(engine.front.inbox, letter, 0, nil) == 1)
reply.id, reply.code, reply.n, reply.data = letter.id, C.PL_EARG, 4, ffi.cast("char *", "oops")
assert(C.pl_mail_put(engine.front.outbox, reply, 0, nil) == 0)
C.pl_letter_free(letter)
local print_ = print
s.log = function(t) verdict(t:find "oops" ~= nil, "the log says why: " .. t) end
status, body = answer(c)
verdict(status == 500 and body.error.message == "internal error", "an error of ours: " .. status)
s.log = print_
-- a full box is an overload
local crowd = {}
for i = 1, engine.places + 1 do crowd[i] = ask("/tokenize", { prompt = ("z"):rep(3000) }) end
until_(function() return s.n_asked == engine.places and s.http:stats().n_open == engine.places + 2 end, "a full box")
for i = 1, engine.places + 1 do crowd[i]:close() end
until_(function() return s.n_asked == 0 end, "all have gone")
verdict(C.pl_mail_take(engine.front.inbox, letter, 0, nil) == 0, "none of them is read")
engine.front:close()
engine.front = own

-- 2. The real one, with all that a body may be.
decode_again()
local n
status, body, n = answer(ask("/v1/chat/completions", { messages = { { role = "user", content = "slow" } } }))
verdict(status == 400 and body.error.message:find "more steps than it may", "a template's steps end: " .. status)
verdict(n >= 6, ("%d tokens of others while a template took all its steps"):format(n))
decode_again()
status, body, n = answer(ask("/v1/completions", ('{"prompt":"%s","max_tokens":1,"extra":[%s1]}'):format(
  ("a "):rep(300), ("1,"):rep(390000))))
verdict(status == 200 and body.usage.completion_tokens == 1, "a body of 400,000 values: " .. status)
verdict(n >= 4, ("%d tokens of others beside a body of 400,000 values"):format(n))
decode_again()
status, body, n = answer(ask("/v1/completions", ('{"prompt":"%s"}'):format(("long words and others "):rep(300000))))
verdict(status == 400 and body.error.code == "context_length_exceeded", "a text of 6 MB: " .. status)
verdict(n >= 4, ("%d tokens of others beside a text of 6 MB"):format(n))
status, body = answer(ask("/tokenize", { prompt = text .. (" "):rep(3000) }))
verdict(status == 200 and body.count > 150, "a long text is tokenised")
status, body = answer(ask("/detokenize", cjson.encode { tokens = body.tokens }))
verdict(status == 200 and body.prompt:find(text, 1, true) ~= nil, "and comes back")
for _, b in ipairs { "[" .. (" "):rep(3000) .. "]", ("{"):rep(3000), '{"a":"' .. ("\255"):rep(3000) .. '"}',
  '{"prompt":[' .. ("5,"):rep(2000) .. '999999]}', '{"prompt":5,"x":"' .. ("y"):rep(3000) .. '"}' } do
  local _, want, said = s.reader:read(requests.kinds.completion, b)
  status, body = answer(ask("/v1/completions", b))
  verdict(status == want and status == 400 and body.error.message == cjson.decode(said).error.message,
    "the front refuses as the server does: " .. status .. " " .. body.error.message)
end
for i = 1, 2 do decodes[i]:close() end
until_(function() return next(s.jobs) == nil end, "the end")
s.http:close()
s.engine_model:close()

-- 3. Without front threads the engine's own reads all.
s = open { fronts = 0 }
engine = s.engine_model.engine
_, body = answer(ask("/v1/completions", long))
verdict(body.choices[1].text == alone.choices[1].text and s.n_asked == 0, "no fronts: the same answer")
s.http:close()
s.engine_model:close()
os.remove(template)
verdicts.done()
