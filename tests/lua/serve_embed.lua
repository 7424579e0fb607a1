-- /v1/embeddings of perilune serve on a tiny model: all shapes of the input, both encodings, long lists beside other
-- requests, errors that name the field, clients that go, overload.
local cjson, client = require "cjson", dofile "tests/http_client.lua"
local abi, pl = require "pl.abi", require "pl"
local path, EMBED = "tests/data/tiny-llama", "/v1/embeddings"
local verdicts = dofile "tests/verdicts.lua"
local ok, eq = verdicts.ok, verdicts.eq

local s = client.serve(path .. " --context 1024 --batch 4 --queue 8 --act f32 --vllm-names")
local function post(where, body, headers)
  if type(body) == "table" then body = cjson.encode(body) end
  local status, text, h = client.call(s.port, "POST", where, body, headers)
  local fine, t = pcall(cjson.decode, text or "")
  return status, fine and t or text, h
end
local function metric(name)
  local _, text = client.call(s.port, "GET", "/metrics")
  return tonumber(text:match("\n" .. name:gsub("%p", "%%%0") .. "{[^}]*} ([%d.e+-]+)"))
end

local m = pl.load(path, { batch = 1, context = 1024, act = "f32" })
local function bytes(t) return abi.string(abi.cast("const char *", t.data), tonumber(t.dim[0]) * 4) end
-- an answer's entry as the bytes of its f32
local function from_list(list)
  return abi.string(abi.cast("const char *", abi.array("float", list)), #list * 4)
end
local value = {}
for i = 0, 63 do
  value[("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):byte(i + 1)] = i
end
local function from_base64(text)
  local out = {}
  for a, b, c, d in text:gmatch "(.)(.)(.)(.)" do
    local v = value[a:byte()] * 2 ^ 18 + value[b:byte()] * 2 ^ 12 + (value[c:byte()] or 0) * 64 + (value[d:byte()] or 0)
    out[#out + 1] = string.char(math.floor(v / 65536), math.floor(v / 256) % 256, v % 256):sub(1,
      d == "=" and (c == "=" and 1 or 2) or 3)
  end
  return table.concat(out)
end

-- base64 by the RFC's own examples
do
  local base64 = require("pl.embeddings").base64
  for plain, coded in pairs { [""] = "", f = "Zg==", fo = "Zm8=", foo = "Zm9v", foob = "Zm9vYg==", fooba = "Zm9vYmE=",
    foobar = "Zm9vYmFy" } do
    eq(base64(plain), coded, "base64")
    eq(from_base64(coded), plain, "base64 back")
  end
end

-- every shape, in both encodings, cut or not: the same bits as the model's own
do
  local hello, one, two = m:ids "Hello, world", m:ids "The", { 7, 8, 9, 10, 11 }
  local shapes = { { "Hello, world", { hello } }, { { "Hello, world", "The" }, { hello, one } }, { two, { two } },
    { { two, one, two }, { two, one, two } }, { { "x" }, { m:ids "x" } }, { { { 5 } }, { { 5 } } } }
  for i, shape in ipairs(shapes) do
    for _, encoding in ipairs { "float", "base64", false } do
      for _, dimensions in ipairs { 1, 17, 191, 192, false } do
        local what = ("shape %d, %s, %s values"):format(i, tostring(encoding), tostring(dimensions))
        local status, t = post(EMBED, { input = shape[1], model = "tiny-llama", user = "u",
          encoding_format = encoding or cjson.null, dimensions = dimensions or cjson.null })
        eq(status, 200, what)
        ok(t.object == "list" and t.model == "tiny-llama" and #t.data == #shape[2], what .. ": shape")
        local n = 0
        for k, ids in ipairs(shape[2]) do
          local e = t.data[k]
          ok(e.object == "embedding" and e.index == k - 1, what .. ": entry")
          local got = encoding == "base64" and from_base64(e.embedding) or from_list(e.embedding)
          ok(got == bytes(m:embed(ids, { dimensions = dimensions or nil })), what .. ": value " .. k)
          n = n + #ids
        end
        ok(t.usage.prompt_tokens == n and t.usage.total_tokens == n and t.usage.completion_tokens == nil,
          what .. ": usage")
      end
    end
  end
  local _, plain = post(EMBED, { input = "The", add_special_tokens = false })
  eq(plain.usage.prompt_tokens, #m:tokenizer():encode("The", { bos = false }), "without what stands in front")
  local _, text = client.call(s.port, "POST", EMBED, '{"input":[5,6],"dimensions":1}')
  ok(text == '{"data":[{"embedding":[1],"index":0,"object":"embedding"}],"model":"tiny-llama","object":"list",'
    .. '"usage":{"prompt_tokens":2,"total_tokens":2}}'
    or text == '{"data":[{"embedding":[-1],"index":0,"object":"embedding"}],"model":"tiny-llama","object":"list",'
    .. '"usage":{"prompt_tokens":2,"total_tokens":2}}', "golden: " .. text)
end

-- long lists, more than the engine has places, beside an answer and another list
do
  local function input(seed)
    local list = {}
    for i = 1, 60 do
      list[i] = ("word %d of %d "):format(i, seed)
      if i % 20 == 0 then list[i] = list[i] .. ("abcdefghijk "):rep(18 + seed) end -- one of some kB is tokenised aside
    end
    return list
  end
  local long = ("and the "):rep(257) -- 2,056 bytes: a front thread tokenises it
  local conns, lists = {}, { input(1), input(2) }
  lists[2][7] = long
  for i, list in ipairs(lists) do
    conns[i] = client.dial(s.port)
    conns[i]:ask("POST", EMBED, cjson.encode { input = list, encoding_format = "base64", priority = i })
  end
  local answer = client.dial(s.port)
  answer:ask("POST", "/v1/completions", cjson.encode { prompt = "The", max_tokens = 50, temperature = 0,
    ignore_eos = true })
  local status, h = answer:head()
  eq(status, 200, "an answer beside them")
  eq(cjson.decode(answer:body(h)).choices[1].text, m:generate({ prompt = "The", max_tokens = 50,
    ignore_eos = true }).text, "its text")
  answer:close()
  for i, list in ipairs(lists) do
    status, h = conns[i]:head()
    eq(status, 200, "list " .. i)
    local t = cjson.decode(conns[i]:body(h))
    eq(#t.data, 60, "entries")
    local n = 0
    for k, e in ipairs(t.data) do
      local ids = m:ids(list[k])
      n = n + #ids
      ok(e.index == k - 1 and from_base64(e.embedding) == bytes(m:embed(ids)), ("list %d: entry %d"):format(i, k))
    end
    eq(t.usage.prompt_tokens, n, "tokens of a list")
    conns[i]:close()
  end
  eq(metric "perilune_requests_refused_total", 0, "nobody is refused for a long list")
end

-- bad requests: the status, and the field that is named
local many = {}
for i = 1, 2049 do many[i] = "a" end
local wide = {}
for i = 1, 700 do
  wide[i] = {}
  for k = 1, 500 do wide[i][k] = 5 end
end
local bad = {
  { "{}", "input" }, { '{"input":null}', "input" }, { '{"input":""}', "input" }, { '{"input":[]}', "input" },
  { '{"input":[""]}', "input" }, { '{"input":["a",""]}', "input" }, { '{"input":[[]]}', "input" },
  { '{"input":[[5],[]]}', "input" }, { '{"input":5}', "input" }, { '{"input":{"a":1}}', "input" },
  { '{"input":["a",1]}', "input" }, { '{"input":[1,"a"]}', "input" }, { '{"input":[[1],"a"]}', "input" },
  { '{"input":[null]}', "input" }, { '{"input":[-1]}', "input" }, { '{"input":[1.5]}', "input" },
  { '{"input":[1e8]}', "input" }, { '{"input":[[5],[99999999]]}', "input" }, { '{"input":[[[5]]]}', "input" },
  { '{"input":true}', "input" }, { cjson.encode { input = many }, "input" },
  { '{"input":"a","encoding_format":"hex"}', "encoding_format" }, { '{"input":"a","encoding_format":1}',
    "encoding_format" },
  { '{"input":"a","dimensions":0}', "dimensions" }, { '{"input":"a","dimensions":193}', "dimensions" },
  { '{"input":"a","dimensions":1.5}', "dimensions" }, { '{"input":"a","dimensions":"5"}', "dimensions" },
  { '{"input":"a","user":1}', "user" }, { '{"input":"a","truncate_prompt_tokens":5}', "truncate_prompt_tokens" },
  { '{"input":"a","normalize":false}', "normalize" }, { '{"input":"a","model":5}', "model" },
  { '{"input":"a","cache_salt":""}', "cache_salt" }, { "[]", nil }, { "", nil }, { '{"input":"\255"}', nil },
}
for _, b in ipairs(bad) do
  local status, t = post(EMBED, b[1])
  local shown = b[1]:sub(1, 100)
  ok(status == 400 and type(t) == "table" and t.error.type == "invalid_request_error",
    shown .. ": " .. tostring(status))
  if type(t) == "table" then eq(t.error.param, b[2] or cjson.null, shown .. ": " .. tostring(t.error.message)) end
end
do
  eq(post(EMBED, { input = "a", model = "gpt-9" }), 404, "another model")
  eq((client.call(s.port, "GET", EMBED)), 405, "GET")
  eq(post(EMBED, { input = "a", nobody_knows_this = 1, stream = false }), 200, "unknown fields")
  local ids = {}
  for i = 1, 1025 do ids[i] = 5 end
  for what, input in pairs { ids = ids, second = { { 5 }, ids }, text = ("x y z "):rep(300),
    late = { "a", ("x y z "):rep(2000) } } do
    local status, t = post(EMBED, { input = input })
    ok(status == 400 and t.error.code == "context_length_exceeded" and t.error.param == "input"
      and t.error.message:find "%d tokens, the context holds 1024", ("too long, %s: %s %s"):format(what,
      tostring(status), type(t) == "table" and t.error.message or tostring(t)))
  end
  ids[1025] = nil
  eq(post(EMBED, { input = ids }), 200, "as long as the context")
  -- each fits, all together are too many: ids at once, texts when they are counted
  local status, t = post(EMBED, { input = wide, dimensions = 1 })
  ok(status == 400 and t.error.message:find "300500 tokens in 601 inputs, want at most 300000 in all",
    "too many in all: " .. tostring(type(t) == "table" and t.error.message or t))
end

-- a client that goes: its requests end, and those that are still to come do not begin
do
  local name = 'perilune_requests_submitted_total'
  local before = metric(name)
  local list = {}
  for i = 1, 2000 do list[i] = ("a b c d e f %d "):format(i) end
  local c = client.dial(s.port)
  c:ask("POST", EMBED, cjson.encode { input = list })
  client.sleep(0.1)
  c:close()
  local gone = false
  for _ = 1, 200 do
    gone = metric "perilune_requests_running" == 0 and metric "perilune_requests_waiting" == 0
    if gone then break end
    client.sleep(0.01)
  end
  ok(gone, "the requests of a client that has gone end")
  local n = metric(name) - before
  client.sleep(0.1)
  ok(n < 2000 and metric(name) - before == n, ("%d requests of a client that has gone"):format(n))
  ok(metric "vllm:num_requests_running" == 0, "vLLM's names")
end
s.signal(15)
eq(s.wait(), 0, "exit code of a drained server")

-- overload, keys
do
  local keys = os.tmpname()
  local f = assert(io.open(keys, "w"))
  f:write "first-key-1234 alice\n"
  f:close()
  s = client.serve(("%s --context 1024 --batch 1 --queue 0 --keys %s --no-log --name tiny"):format(path, keys))
  local auth = "Authorization: Bearer first-key-1234\r\n"
  eq(post(EMBED, { input = "a" }), 401, "without a key")
  eq(post(EMBED, { input = { "a", "b", "c" }, model = "tiny" }, auth), 200, "one place, three inputs")
  local c = client.dial(s.port)
  c:ask("POST", "/v1/completions", cjson.encode { prompt = "The", max_tokens = 1000, temperature = 0,
    ignore_eos = true, stream = true }, auth)
  c:head()
  local status, t, h = post(EMBED, { input = "a" }, auth)
  ok(status == 429 and h["retry-after"] and t.error.type == "rate_limit_error", "overload")
  c:close()
  s.signal(15)
  s.wait()
  os.remove(keys)
end

m:close()
verdicts.done()
