-- Golden event streams of perilune serve: every byte, but for ids, times, the version and the last digits of
-- probabilities. tests/golden/streams/NAME.txt; PL_UPDATE=1 writes them anew, to be read before they are committed.
local cjson, client = require "cjson", dofile "tests/http_client.lua"
local pl = require "pl"
local verdicts = dofile "tests/verdicts.lua"
local ok = verdicts.ok

local dir = client.templated "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
local s = client.serve(dir .. " --act f32 --context 512 --batch 4 --no-log --name t")
local TEXT, CHAT = "/v1/completions", "/v1/chat/completions"

local function normal(text)
  return (text:gsub('"created":%d+', '"created":0'):gsub('"id":"(c%l+)%-%x+"', '"id":"%1-0"')
    :gsub("perilune%-" .. pl.version():gsub("%p", "%%%0"), "perilune-V")
    :gsub("(%-?%d+%.%d+[e%d+-]*)", function(x) return ("%.2f"):format(tonumber(x)) end))
end
local function read(name)
  local f = io.open(("tests/golden/streams/%s.txt"):format(name))
  local text = f and f:read "*a"
  if f then f:close() end
  return text
end
local function compare(name, text)
  if os.getenv "PL_UPDATE" then
    local f = assert(io.open(("tests/golden/streams/%s.txt"):format(name), "w"))
    f:write(text)
    f:close()
  end
  local want = read(name)
  ok(text == want, ("%s:\n%s\nwant:\n%s"):format(name, text, tostring(want)))
end
local function ask(where, body)
  body.stream, body.temperature = true, body.temperature or 0
  if where == CHAT then body.messages = { { role = "user", content = "Hello" } }
  else body.prompt = body.prompt or "The" end
  return cjson.encode(body)
end
local function golden(name, where, body)
  local status, text, h = client.call(s.port, "POST", where, ask(where, body))
  ok(status == 200 and h["content-type"] == "text/event-stream; charset=utf-8", name .. ": head")
  compare(name, normal(text))
end

-- texts that a stop can be cut out of: of the answers without one
local function pieces(where)
  local out = {}
  local _, text = client.call(s.port, "POST", where, ask(where, { max_tokens = 12 }))
  for data in text:gmatch "data: ({[^\n]*)" do
    local c = cjson.decode(data).choices[1]
    local piece = c.text or c.delta.content
    if piece and piece ~= "" then out[#out + 1] = piece end
  end
  return out
end

for short, where in pairs { text = TEXT, chat = CHAT } do
  local usage, p = { include_usage = true }, pieces(where)
  ok(#p >= 6, short .. ": pieces")
  golden(short, where, { max_tokens = 3 })
  golden(short .. "_usage", where, { max_tokens = 2, stream_options = usage })
  golden(short .. "_n", where, { max_tokens = 3, n = 2, seed = 7, temperature = 1.2, stream_options = usage })
  -- from the end of the second piece over the third to the beginning of the fourth
  local stop = p[2]:sub(-1) .. p[3] .. p[4]:sub(1, 1)
  golden(short .. "_stop", where, { max_tokens = 12, stop = stop, stream_options = usage })
  golden(short .. "_stop_kept", where, { max_tokens = 12, stop = stop, include_stop_str_in_output = true })
  -- what looks like the beginning of a stop text is told when it is none, or at the end
  golden(short .. "_stop_not", where, { max_tokens = 5, stop = { stop .. "\1", p[4] .. p[5] .. "\1" } })
  golden(short .. "_logprobs", where, { max_tokens = 3, logprobs = where == TEXT and 2 or true,
    top_logprobs = where == CHAT and 2 or nil })
  -- tokens that are held back keep their probabilities
  golden(short .. "_logprobs_stop", where, { max_tokens = 12, stop = stop, logprobs = where == TEXT and 0 or true })
  golden(short .. "_nothing", where, { max_tokens = 0, stream_options = usage })
end
golden("text_echo", TEXT, { max_tokens = 2, echo = true })
golden("text_prompts", TEXT, { max_tokens = 2, prompt = { "The", "A" }, n = 2, seed = 3, temperature = 1 })

-- errors before a stream: an answer like any other
do
  local status, text, h = client.call(s.port, "POST", TEXT, ask(TEXT, { max_tokens = 600 }))
  ok(status == 400 and h["content-type"] == "application/json", "an error before the stream")
  compare("error_before", normal(text) .. "\n")
end

-- an error within: the stream is as it would have been, then says so, and has no [DONE]
for short, where in pairs { text = TEXT, chat = CHAT } do
  local body = { max_tokens = 480, ignore_eos = true }
  local _, whole = client.call(s.port, "POST", where, ask(where, body))
  local c = client.dial(s.port)
  c:ask("POST", where, ask(where, body))
  c:head()
  local first = c:chunk()
  s.signal(15)
  client.sleep(0.05)
  s.signal(15)
  local text = first .. (c:body {} or "")
  c:close()
  local at = text:find('data: {"error"', 1, true)
  if at then
    ok(normal(whole):sub(1, #normal(text:sub(1, at - 1))) == normal(text:sub(1, at - 1)), short .. ": what was before")
    compare("error_within", text:sub(at))
  else
    ok(normal(text) == normal(whole), short .. ": it was faster than the signal")
  end
  s.wait(10)
  s = client.serve(dir .. " --act f32 --context 512 --batch 4 --no-log --name t")
end
s.signal(15)
s.wait()
os.execute("rm -r " .. dir)
verdicts.done()
