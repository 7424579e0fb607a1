-- perilune serve as a process, on a tiny model: routes, options, streams, errors, clients that go, overload, drain.
local cjson, client = require "cjson", dofile "tests/http_client.lua"
local pl = require "pl"
local path = "tests/data/tiny-llama"
local verdicts = dofile "tests/verdicts.lua"
local ok, eq = verdicts.ok, verdicts.eq

local s = client.serve(path .. " --context 512 --batch 8 --queue 8 --vllm-names")
local function call(method, where, body, headers)
  if type(body) == "table" then body = cjson.encode(body) end
  local status, text, h = client.call(s.port, method, where, body, headers)
  local fine, t = pcall(cjson.decode, text or "")
  return status, fine and t or text, h
end
local function post(where, body) return call("POST", where, body) end
local COMPLETE = "/v1/completions"

-- frames of a stream: a list of tables, and whether it ended with [DONE]
local function frames(text)
  local out, done = {}, false
  for data in text:gmatch "data: ([^\n]*)\n\n" do
    ok(not done, "a frame behind [DONE]")
    if data == "[DONE]" then done = true else out[#out + 1] = cjson.decode(data) end
  end
  return out, done
end
local function stream(where, body)
  body.stream = true
  local status, text, h = client.call(s.port, "POST", where, cjson.encode(body))
  if status ~= 200 then return status, text end
  eq(h["content-type"], "text/event-stream; charset=utf-8", "type of a stream")
  local list, done = frames(text)
  ok(done, "a stream ends with [DONE]: " .. text:sub(-200))
  return list, text
end
local function said(list, index)
  local parts, finish = {}, nil
  for _, f in ipairs(list) do
    for _, c in ipairs(f.choices) do
      if c.index == (index or 0) then
        parts[#parts + 1] = c.text or c.delta.content
        if c.finish_reason ~= cjson.null then
          ok(not finish, "one frame says how it ended")
          finish = c.finish_reason
        end
      end
    end
  end
  return table.concat(parts), finish
end
local function metric(name)
  local _, text = client.call(s.port, "GET", "/metrics")
  name = name:gsub("%p", "%%%0")
  return tonumber(text:match("\n" .. name .. " ([%d.e+-]+)") or text:match("\n" .. name .. "{[^}]*} ([%d.e+-]+)"))
end

-- routes
do
  local status, t = call("GET", "/health")
  ok(status == 200 and t.live and t.ready and t.step_age_s == cjson.null, "health")
  status, t = call("GET", "/v1/models")
  ok(status == 200 and t.object == "list" and t.data[1].id == "tiny-llama", "models")
  local _
  eq(call("GET", "/v1/models/tiny-llama"), 200, "a model")
  eq(call("GET", "/v1/models/other"), 404, "no such model")
  _, t = call("GET", "/version")
  eq(t.version, pl.version(), "version")
  status, t = call("GET", "/nothing")
  ok(status == 404 and t.error.type == "not_found_error", "404")
  for where, want in pairs { ["/v1/chat/completion"] = "completion', did you mean '/v1/chat/completions'?",
    ["/xyz%C3%A9"] = "no path '/xyz\195\169'", ["/"] = "no path '/', want one of /detokenize /health" } do
    local code, body = call("GET", where)
    ok(code == 404 and body.error.message:find(want, 1, true), where .. ": " .. tostring(body.error.message))
  end
  _, t = call("GET", "/v1/models/other")
  eq(t.error.message, "no model 'other', this server has 'tiny-llama'", "404 of a model")
  status, t = call("GET", COMPLETE)
  eq(status, 405, "405")
  eq(t.error.message, "GET " .. COMPLETE .. ": want one of OPTIONS, POST", "405 says what")
  -- each route with each method: an answer, or a 405 that says which ones there are
  local get, posts = "GET, HEAD, OPTIONS", "OPTIONS, POST"
  for where, may in pairs { ["/health"] = get, ["/metrics"] = get, ["/version"] = get, ["/v1/models"] = get,
    ["/v1/models/tiny-llama"] = get, [COMPLETE] = posts, ["/v1/chat/completions"] = posts, ["/v1/embeddings"] = posts,
    ["/tokenize"] = posts, ["/detokenize"] = posts } do
    for _, method in ipairs { "GET", "HEAD", "OPTIONS", "POST", "PUT", "DELETE", "PATCH", "TRACE", "CONNECT",
      "PROPFIND" } do
      local what = method .. " " .. where
      local c = client.dial(s.port)
      c:ask(method, where, (method == "POST" or method == "PUT") and "{}" or nil)
      local h
      status, h = c:head()
      if method == "OPTIONS" then
        ok(status == 204 and h.allow == may, ("%s: %s, %s"):format(what, status, tostring(h.allow)))
      elseif may == get and (method == "GET" or method == "HEAD") then
        ok(status == 200 and tonumber(h["content-length"]) > 0, what .. ": " .. status)
      elseif may == posts and method == "POST" then
        ok(status == 400 or status == 404, what .. ": " .. status)
      else
        ok(status == 405 and h.allow == may, ("%s: %s, %s"):format(what, status, tostring(h.allow)))
      end
      if method == "HEAD" then
        c:half_close()
        ok(not c:more(1) and c.held == "", what .. ": no body: " .. c.held)
      elseif status == 405 then
        ok(cjson.decode(c:body(h)).error.message:find(": want one of " .. may, 1, true), what .. ": says what there is")
      end
      c:close()
    end
  end
  eq(call("DELETE", "/nothing"), 404, "no path, no methods")
  for _, where in ipairs { "/tokenize", "/detokenize" } do
    status, t = post(where, { prompt = where == "/tokenize" and "x" or nil, model = "gpt-9",
      tokens = where == "/detokenize" and { 5 } or nil })
    ok(status == 404 and t.error.code == "model_not_found" and t.error.param == "model", where .. ": another model")
    status = post(where, { prompt = where == "/tokenize" and "x" or nil, model = "tiny-llama",
      tokens = where == "/detokenize" and { 5 } or nil })
    eq(status, 200, where .. ": this model")
  end
  local ids
  status, ids = post("/tokenize", { prompt = "Hello, world" })
  ok(status == 200 and ids.count == #ids.tokens, "tokenize")
  status, t = post("/tokenize", { prompt = "" })
  ok(status == 200 and t.count == #t.tokens, "an empty text")
  status, t = post("/detokenize", { tokens = ids.tokens })
  ok(status == 200 and t.prompt:find "Hello, world", "detokenize")
  eq(post("/detokenize", { tokens = { 1e9 } }), 400, "an id that is none")
  status, t = call("POST", "/detokenize", '{"tokens":[]}')
  ok(status == 200 and t.prompt == "", "no ids")
end

-- what the server says is what the model says
local m = pl.load(path, { batch = 1, context = 512 })
local function solo(prompt, n, o)
  local q = { prompt = prompt, max_tokens = n }
  for k, v in pairs(o or {}) do q[k] = v end
  return m:generate(q)
end
local long = solo("Once upon a time", 60)
do
  local status, t = post(COMPLETE, { prompt = "Once upon a time", max_tokens = 60, temperature = 0 })
  eq(status, 200, "status")
  eq(t.choices[1].text, long.text, "text")
  eq(t.choices[1].finish_reason, long.finish, "finish")
  ok(t.object == "text_completion" and t.id:find "^cmpl%-" and t.choices[1].logprobs == cjson.null
    and t.choices[1].index == 0, "shape")
  eq(t.usage.prompt_tokens, long.prompt_tokens, "prompt tokens")
  eq(t.usage.total_tokens, t.usage.prompt_tokens + t.usage.completion_tokens, "total")
  local list, text = stream(COMPLETE, { prompt = "Once upon a time", max_tokens = 60, temperature = 0 })
  local whole, finish = said(list)
  eq(whole, long.text, "streamed text")
  eq(finish, long.finish, "streamed finish")
  ok(not text:find "usage", "no usage that nobody asked for")
  list = stream(COMPLETE, { prompt = "Once upon a time", max_tokens = 60, temperature = 0,
    stream_options = { include_usage = true } })
  for i = 1, #list - 1 do ok(list[i].usage == cjson.null and #list[i].choices == 1, "usage in the last frame only") end
  ok(#list[#list].choices == 0 and list[#list].usage.prompt_tokens == long.prompt_tokens, "usage frame")
  -- ids as a prompt, lists of prompts, echo
  local ids = m:ids("Once upon a time")
  t = select(2, post(COMPLETE, { prompt = ids, max_tokens = 60, temperature = 0 }))
  eq(t.choices[1].text, long.text, "text of ids")
  t = select(2, post(COMPLETE, { prompt = { "Once upon a time", "The" }, max_tokens = 5, temperature = 0 }))
  eq(t.choices[2].text, solo("The", 5).text, "the second prompt")
  eq(t.usage.completion_tokens, 10, "tokens of both")
  t = select(2, post(COMPLETE, { prompt = "The", max_tokens = 3, temperature = 0, echo = true }))
  eq(t.choices[1].text, "The" .. solo("The", 3).text, "echo")
  -- sampled: by seed, and n answers are those of n seeds
  local function sampled(seed, n)
    local _, r = post(COMPLETE, { prompt = "The", max_tokens = 8, temperature = 1.2, seed = seed, n = n })
    return r.choices
  end
  local three = sampled(5, 3)
  for i = 1, 3 do
    eq(three[i].text, solo("The", 8, { temperature = 1.2, seed = 4 + i }).text, "answer " .. i)
    eq(sampled(4 + i)[1].text, three[i].text, "alone")
  end
  local list3 = stream(COMPLETE, { prompt = "The", max_tokens = 8, temperature = 1.2, seed = 5, n = 3 })
  for i = 1, 3 do eq((said(list3, i - 1)), three[i].text, "streamed answer " .. i) end
  local free = sampled()[1].text
  ok(sampled()[1].text ~= free or sampled()[1].text ~= free, "no seed: not the same each time")
  eq(#sampled(-1), 1, "a negative seed")
end

-- stop texts, wherever they lie: each part of the answer of 1 to 7 bytes
do
  local text = long.text
  for n = 1, 7, 2 do
    for at = 1, #text - n, 9 do
      local stop = text:sub(at, at + n - 1)
      if not stop:find "[\128-\255]" then
        local want = text:sub(1, text:find(stop, 1, true) - 1)
        local body = { prompt = "Once upon a time", max_tokens = 60, temperature = 0, stop = { "\1\2", stop } }
        local _, t = post(COMPLETE, body)
        ok(t.choices[1].text == want and t.choices[1].finish_reason == "stop", ("stop %q: %q"):format(stop,
          t.choices[1].text))
        local got, why = said((stream(COMPLETE, body)))
        ok(got == want and why == "stop", ("streamed stop %q: %q"):format(stop, got))
      end
    end
  end
  local finished = 'perilune_requests_finished_total{model_name="tiny-llama",finished_reason="%s"}'
  ok(metric(finished:format "stop") >= 1 and metric(finished:format "cancelled") == 0, "a stop text is no cancellation")
  local _, t = post(COMPLETE, { prompt = "Once upon a time", max_tokens = 60, temperature = 0, stop = text:sub(5, 8),
    include_stop_str_in_output = true })
  eq(t.choices[1].text, text:sub(1, select(2, text:find(text:sub(5, 8), 1, true))), "the stop text is kept")
  local first = long.ids[3]
  _, t = post(COMPLETE, { prompt = "Once upon a time", max_tokens = 60, temperature = 0, stop_token_ids = { first } })
  eq(t.choices[1].finish_reason, "stop", "a stop token")
  _, t = post(COMPLETE, { prompt = "Once upon a time", max_tokens = 60, temperature = 0, stop_token_ids = { first },
    min_tokens = 20 })
  ok(t.usage.completion_tokens >= 20, "min_tokens: " .. t.usage.completion_tokens)
  _, t = post(COMPLETE, { prompt = "Once upon a time", max_tokens = 3, temperature = 0, stop = { "never \1 there" } })
  eq(t.choices[1].text, solo("Once upon a time", 3).text, "what was held back is told at the end")
end

-- logprobs of both dialects, bias, penalties
do
  local _, t = post(COMPLETE, { prompt = "The", max_tokens = 4, temperature = 0, logprobs = 2 })
  local lp = t.choices[1].logprobs
  ok(#lp.tokens == 4 and #lp.token_logprobs == 4 and lp.text_offset[1] == 0, "logprobs")
  eq(table.concat(lp.tokens), t.choices[1].text, "their tokens make the text")
  local list = stream(COMPLETE, { prompt = "The", max_tokens = 4, temperature = 0, logprobs = 2 })
  local n = 0
  for _, f in ipairs(list) do
    local l = f.choices[1] and f.choices[1].logprobs
    if l and l ~= cjson.null then
      for i, v in ipairs(l.token_logprobs) do
        n = n + 1
        eq(v, lp.token_logprobs[n], "streamed logprob")
        eq(l.text_offset[i], lp.text_offset[n], "streamed offset")
      end
    end
  end
  eq(n, 4, "streamed logprobs")
  local id = m:ids("The quick")[2]
  _, t = post(COMPLETE, { prompt = "The", max_tokens = 2, temperature = 0, logit_bias = { [tostring(id)] = 100 } })
  eq(t.choices[1].text, m:tokenizer():decode { id, id }, "logit_bias")
  for _, o in ipairs { "presence_penalty", "frequency_penalty", "repetition_penalty" } do
    _, t = post(COMPLETE, { prompt = "The", max_tokens = 12, temperature = 0, [o] = 1.5 })
    eq(t.choices[1].text, solo("The", 12, { [o] = 1.5 }).text, o)
  end
  eq(post(COMPLETE, { prompt = "The", max_tokens = 2, top_k = -1, top_p = 0.5, min_p = 0.1, cache_salt = "x",
    priority = 3, user = "u", ignore_eos = true, nobody_knows_this = { 1 }, stop = cjson.null }), 200, "other options")
end

-- a prompt again: most of it comes from the cache
do
  local prompt = ("a long text "):rep(60)
  local ask = { prompt = prompt, max_tokens = 1, temperature = 0, cache_salt = "s1" }
  local _, t = post(COMPLETE, ask)
  eq(t.usage.prompt_tokens_details.cached_tokens, 0, "nothing cached")
  _, t = post(COMPLETE, ask)
  ok(t.usage.prompt_tokens_details.cached_tokens >= 64, "cached")
  ask.cache_salt = "s2"
  _, t = post(COMPLETE, ask)
  eq(t.usage.prompt_tokens_details.cached_tokens, 0, "another salt")
end

-- golden frames: what does not change from run to run
do
  local _, text = stream(COMPLETE, { prompt = "The", max_tokens = 2, temperature = 0,
    stream_options = { include_usage = true } })
  local words = solo("The", 2)
  local tok = m:tokenizer()
  local function q(x) return (cjson.encode(x):gsub("\\/", "/")) end
  local head = '],"created":0,"id":"cmpl-0","model":"tiny-llama","object":"text_completion",'
    .. '"system_fingerprint":"perilune-V","usage":'
  local function frame(choice, usage) return 'data: {"choices":[' .. choice .. head .. (usage or "null") .. "}\n\n" end
  local function piece(x) return frame('{"finish_reason":null,"index":0,"logprobs":null,"text":' .. q(x) .. "}") end
  local next_text = tok:stream()
  local want = piece(next_text(words.ids[1])) .. piece(next_text(words.ids[2]))
    .. frame '{"finish_reason":"length","index":0,"logprobs":null,"text":""}'
    .. frame("", ('{"completion_tokens":2,"completion_tokens_details":{"reasoning_tokens":0},"prompt_tokens":%d,'
    .. '"prompt_tokens_details":{"cached_tokens":0},"total_tokens":%d}'):format(words.prompt_tokens,
      words.prompt_tokens + 2)) .. "data: [DONE]\n\n"
  text = text:gsub('"created":%d+', '"created":0'):gsub('"id":"cmpl%-%x+"', '"id":"cmpl-0"')
    :gsub("perilune%-" .. pl.version():gsub("%p", "%%%0"), "perilune-V")
  eq(text, want, "golden frames")
end

-- bad requests: the status, and the field that is named
local bad = {
  { "", nil }, { "{", nil }, { "[]", nil }, { "null", nil }, { "1", nil }, { '{"prompt":"a"', nil },
  { '{"prompt":"a","prompt":"b"}', nil }, { '{"prompt":"\255"}', nil }, { '{"prompt":"\\ud800"}', nil },
  { ('{"prompt":%s"a"%s}'):format(("["):rep(200), ("]"):rep(200)), nil }, { "{}", "prompt" },
  { '{"prompt":"a","seed":123456789012345678901234567890}', nil }, { '{"prompt":"a","temperature":1e999}', nil },
  { "[" .. ("[],"):rep(500000) .. "[]]", nil }, { '{"prompt":""}', "prompt" }, { '{"prompt":[]}', "prompt" },
  { '{"prompt":[-1]}', "prompt" }, { '{"prompt":[1.5]}', "prompt" }, { '{"prompt":[1e8]}', "prompt" },
  { '{"prompt":["a",1]}', "prompt" }, { '{"prompt":{"a":1}}', "prompt" },
  { '{"prompt":"a","max_tokens":-1}', "max_tokens" }, { '{"prompt":"a","max_tokens":"5"}', "max_tokens" },
  { '{"prompt":"a","temperature":-1}', "temperature" }, { '{"prompt":"a","top_p":0}', "top_p" },
  { '{"prompt":"a","n":0}', "n" }, { '{"prompt":"a","n":1000}', "n" }, { '{"prompt":"a","stop":""}', "stop" },
  { '{"prompt":"a","stop":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]}', "stop" },
  { '{"prompt":"a","stop":{"a":1}}', "stop" }, { '{"prompt":"a","logit_bias":{"x":1}}', "logit_bias" },
  { '{"prompt":"a","logit_bias":{"99999999":1}}', "logit_bias" },
  { '{"prompt":"a","logit_bias":{"1":1000}}', "logit_bias" },
  { '{"prompt":"a","logprobs":21}', "logprobs" }, { '{"prompt":"a","stream_options":{}}', "stream_options" },
  { '{"prompt":"a","stream":true,"stream_options":{"include_usage":1}}', "stream_options" },
  { '{"prompt":"a","best_of":3}', "best_of" }, { '{"prompt":"a","suffix":"x"}', "suffix" },
  { '{"prompt":"a","response_format":{"type":"json_object"}}', "response_format" },
  { '{"prompt":"a","guided_json":{}}', "guided_json" }, { '{"prompt":"a","prompt_logprobs":1}', "prompt_logprobs" },
  { '{"prompt":"a","bad_words":["x"]}', "bad_words" }, { '{"prompt":"a","presence_penalty":3}', "presence_penalty" },
  { '{"prompt":"a","truncate_prompt_tokens":3}', "truncate_prompt_tokens" },
  { '{"prompt":"a","min_tokens":-1}', "min_tokens" }, { '{"prompt":"a","seed":1.5}', "seed" },
  { '{"prompt":"a","stop_token_ids":[99999999]}', "stop_token_ids" },
  { '{"prompt":"a","skip_special_tokens":false}', "skip_special_tokens" },
  { '{"prompt":"a","max_completion_tokens":3}', "max_completion_tokens" }, { '{"prompt":"a","top_logprobs":3}',
    "top_logprobs" }, { '{"prompt":"a","max_tokens":3,"min_tokens":4}', "min_tokens" },
}
for _, b in ipairs(bad) do
  local status, t = post(COMPLETE, b[1])
  local shown = b[1]:sub(1, 100)
  ok(status == 400 and type(t) == "table" and t.error.type == "invalid_request_error",
    shown .. ": " .. tostring(status))
  if type(t) == "table" then eq(t.error.param, b[2] or cjson.null, shown .. ": " .. tostring(t.error.message)) end
end
do
  local status, t = post(COMPLETE, { prompt = "a", model = "gpt-9" })
  ok(status == 404 and t.error.code == "model_not_found", "another model")
  -- too long, in ids, in a short text, in a long one; alone and with what is wanted
  local ids = {}
  for i = 1, 512 do ids[i] = 5 end
  for what, body in pairs { ids = { prompt = ids }, text = { prompt = ("x y z "):rep(300), max_tokens = 1 },
    long = { prompt = ("x y z "):rep(2000), max_tokens = 1 }, wanted = { prompt = "The", max_tokens = 600 },
    late = { prompt = ("abcdefghij "):rep(190), max_tokens = 500 } } do
    for _, streams in ipairs { false, true } do
      body.stream = streams
      status, t = post(COMPLETE, body)
      ok(status == 400 and t.error.code == "context_length_exceeded" and t.error.message:find "%d",
        ("too long: %s: %s %s"):format(what, tostring(status), type(t) == "table" and t.error.message or tostring(t)))
    end
  end
  eq(select(2, post(COMPLETE, { prompt = "The", max_tokens = 0, temperature = 0 })).choices[1].text, "", "no tokens")
end

-- clients at once: each gets what it would get alone
do
  local conns, prompts = {}, { "The", "Once", "A b c", "12 + 13", "x", "Hello", "I am", "Why" }
  for round = 1, 2 do
    for i, p in ipairs(prompts) do
      conns[i] = client.dial(s.port)
      conns[i]:ask("POST", COMPLETE, cjson.encode { prompt = p, max_tokens = 20 + i, temperature = 0,
        stream = round == 2 })
    end
    for i, p in ipairs(prompts) do
      local status, h = conns[i]:head()
      eq(status, 200, "status " .. i)
      local body = conns[i]:body(h)
      local text = round == 2 and said((frames(body))) or round == 1 and cjson.decode(body).choices[1].text
      eq(text, solo(p, 20 + i).text, "answer to client " .. i)
      conns[i]:close()
    end
  end
end

-- a client that goes: its request ends, before the answer and within one
for _, streams in ipairs { true, false } do
  local before = metric "perilune_generation_tokens_total"
  local cancelled = metric 'perilune_requests_finished_total{model_name="tiny-llama",finished_reason="cancelled"}'
  local c = client.dial(s.port)
  c:ask("POST", COMPLETE, cjson.encode { prompt = "The", max_tokens = 500, temperature = 0, ignore_eos = true,
    stream = streams, n = 4 })
  if streams then
    c:head()
    c:chunk()
  else
    client.sleep(0.05)
  end
  c:close()
  local gone = false
  for _ = 1, 100 do
    gone = metric "perilune_requests_running" == 0 and metric "perilune_requests_waiting" == 0
    if gone then break end
    client.sleep(0.01)
  end
  ok(gone, "the request of a client that has gone ends")
  local tokens = metric "perilune_generation_tokens_total" - before
  local n = metric 'perilune_requests_finished_total{model_name="tiny-llama",finished_reason="cancelled"}' - cancelled
  ok(tokens < 2000 and n == 4, ("%d tokens were made for it, %d requests cancelled"):format(tokens, n))
end
-- one that has only finished sending is served
do
  local c = client.dial(s.port)
  c:ask("POST", COMPLETE, cjson.encode { prompt = "The", max_tokens = 200, temperature = 0, ignore_eos = true })
  c:half_close()
  local status, h = c:head()
  eq(status, 200, "half-closed")
  eq(cjson.decode(c:body(h)).usage.completion_tokens, 200, "half-closed: the whole answer")
  c:close()
end
ok(metric "vllm:num_requests_running" == 0 and metric "vllm:generation_tokens_total" > 0, "vLLM's names")
do
  local _, t = call("GET", "/health")
  ok(type(t.step_age_s) == "number" and t.open == 0, "the age of the last step")
end

-- the log: a line of JSON each
for line in s.log():gmatch "(%b{})\n" do
  local t = cjson.decode(line)
  if t.path == COMPLETE and t.status == 200 and t["end"] == "complete" then
    ok(t.prompt_tokens ~= nil, "figures in the log")
  end
end

-- drain: what has begun ends as it would, nobody else is let in
do
  local c = client.dial(s.port)
  c:ask("POST", COMPLETE, cjson.encode { prompt = "The", max_tokens = 400, temperature = 0, ignore_eos = true,
    stream = true })
  c:head()
  s.signal(15)
  eq(client.becomes(nil, function() return client.dial(s.port) end), nil, "nobody is let in")
  local text = c:body {}
  local list, done = frames(text or "")
  ok(done and select(2, said(list)) == "length", "the stream ends as it would")
  c:close()
  eq(s.wait(), 0, "exit code of a drained server")
end

-- overload, keys, a second signal
do
  local keys = os.tmpname()
  local function write(text)
    local f = assert(io.open(keys, "w"))
    f:write(text)
    f:close()
  end
  write "first-key-1234 alice\nsecond-key-1234 bob\n"
  s = client.serve(("%s --context 1024 --batch 1 --queue 0 --keys %s --no-log --name tiny"):format(path, keys))
  local auth = "Authorization: Bearer first-key-1234\r\n"
  eq(call("GET", "/health"), 200, "health needs no key")
  for _, p in ipairs { "/metrics", "/v1/models", "/version", "/nothing" } do
    eq(call("GET", p), 401, p .. " without a key")
  end
  eq(call("GET", "/metrics", nil, auth), 200, "with a key")
  eq(call("POST", COMPLETE, { prompt = "a", model = "tiny", max_tokens = 1 }, auth), 200, "a name of its own")
  local c = client.dial(s.port)
  local ask = cjson.encode { prompt = "The", max_tokens = 1000, temperature = 0, ignore_eos = true, stream = true }
  c:ask("POST", COMPLETE, ask, auth)
  c:head()
  local status, t, h = call("POST", COMPLETE, { prompt = "a" }, auth)
  ok(status == 429 and h["retry-after"] and t.error.type == "rate_limit_error", "overload")
  verdicts.has(t.error.message, "no room for another request: 1 run or wait", "overload")
  c:close()
  write "third-key-12345 carol\n"
  s.signal(1)
  eq(client.becomes(401, function() return (call("GET", "/version", nil, auth)) end), 401, "an old key")
  eq(call("GET", "/version", nil, "Authorization: Bearer third-key-12345\r\n"), 200, "a new key")
  write "bad\n"
  s.signal(1)
  ok(client.becomes(true, function() return s.log():find("nothing has changed", 1, true) ~= nil end), "a bad file")
  eq(call("GET", "/version", nil, "Authorization: Bearer third-key-12345\r\n"), 200, "a bad file changes nothing")
  c = client.dial(s.port)
  c:ask("POST", COMPLETE, ask, "Authorization: Bearer third-key-12345\r\n")
  c:head()
  s.signal(15)
  client.sleep(0.02)
  s.signal(15)
  local text = c:body {} or ""
  local code = s.wait(5)
  ok(code == 1 and text:find '"error"' or code == 0 and text:find "DONE", ("a second signal: exit %s, %s"):format(
    tostring(code), text:sub(-100)))
  c:close()
  os.remove(keys)
end

m:close()
verdicts.done()
