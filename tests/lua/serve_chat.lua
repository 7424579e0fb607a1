-- /v1/chat/completions: messages through the model's template, both forms of the answer, golden frames, refusals.
local cjson, client = require "cjson", dofile "tests/http_client.lua"
local pl = require "pl"
local verdicts = dofile "tests/verdicts.lua"
local ok, eq = verdicts.ok, verdicts.eq

-- the tiny model with a template
local dir = client.templated [[{%- for m in messages -%}
{%- if m.role not in ["system", "user", "assistant"] -%}{{ raise_exception("no role " ~ m.role) }}{%- endif -%}
<{{ m.role }}>{{ m.content }}{{ shout }}
{% endfor -%}
{%- for t in tools or [] -%}<tool>{{ t.function.name }}{%- endfor -%}
{%- if add_generation_prompt -%}<assistant>{%- endif -%}]]
local m = pl.load(dir, { batch = 1, context = 512 })
local s = client.serve(dir .. " --context 512 --batch 4 --no-log --name t")
local CHAT = "/v1/chat/completions"

local function post(body)
  local status, text = client.call(s.port, "POST", CHAT, type(body) == "table" and cjson.encode(body) or body)
  local fine, t = pcall(cjson.decode, text or "")
  return status, fine and t or text
end
local function solo(vars, n, o)
  local q = { ids = m:tokenizer():encode(m:render(vars), { specials = true }), max_tokens = n }
  for k, v in pairs(o or {}) do q[k] = v end
  return m:generate(q)
end

local messages = { { role = "system", content = "Be brief." }, { role = "user", content = "Hello there, how many?" } }
local want = solo({ messages = messages }, 12)
do
  local status, t = post { messages = messages, max_tokens = 12, temperature = 0 }
  local c = t.choices and t.choices[1]
  ok(status == 200 and t.object == "chat.completion" and t.id:find "^chatcmpl%-" and c.message.role == "assistant"
    and c.message.refusal == cjson.null and c.logprobs == cjson.null, "shape")
  eq(c.message.content, want.text, "content")
  eq(c.finish_reason, want.finish, "finish")
  eq(t.usage.prompt_tokens, want.prompt_tokens, "prompt tokens")
  -- max_completion_tokens, content in parts, null, an empty list of calls in the history
  t = select(2, post { messages = { messages[1], { role = "user", name = cjson.null, content = {
    { type = "text", text = "Hello there, how many?" } } } }, max_completion_tokens = 12, temperature = 0 })
  eq(t.choices[1].message.content, want.text, "content in parts")
  status, t = post(('{"messages":[{"role":"assistant","content":"x","tool_calls":[]},{"role":"user","content":"y"}],'
    .. '"max_tokens":3,"temperature":0,"tools":[],"stop":null}'))
  eq(status, 200, "an empty list of calls")
  eq(t.choices[1].message.content, solo({ messages = { { role = "assistant", content = "x" }, { role = "user",
    content = "y" } } }, 3).text, "an empty list of calls: text")
  -- what the template is told
  status, t = post { messages = { { role = "user", content = { type = "text", text = "not in a list" } } } }
  eq(status, 400, "a part outside a list")
  ok(t.error.message:find("messages[0].content: an object, want a text or a list of parts", 1, true), t.error.message)
  t = select(2, post { messages = messages, max_tokens = 5, temperature = 0, chat_template_kwargs = { shout = "!" } })
  eq(t.choices[1].message.content, solo({ messages = messages, shout = "!" }, 5).text, "kwargs")
  local open = { messages[2], { role = "assistant", content = "There are" } }
  t = select(2, post { messages = open, max_tokens = 5, temperature = 0, continue_final_message = true })
  eq(t.choices[1].message.content, solo({ messages = open, continue_final_message = true,
    add_generation_prompt = false }, 5).text, "the last message is continued")
  -- tools that may not be called are the template's to show
  t = select(2, post { messages = messages, max_tokens = 5, temperature = 0, tool_choice = "none",
    tools = { { type = "function", ["function"] = { name = "look_up" } } } })
  eq(t.choices[1].message.content, solo({ messages = messages, tools = { { ["function"] = { name = "look_up" } } } },
    5).text, "tools")
  -- without a limit: as much as the context holds
  t = select(2, post { messages = messages, temperature = 0, ignore_eos = true })
  eq(t.usage.total_tokens, 512, "as much as there is room for")
  t = select(2, post { messages = { { role = "user", content = ("a b c "):rep(220) .. ("x"):rep(800) } },
    temperature = 0, ignore_eos = true })
  ok(t.usage and t.usage.total_tokens == 512 or t.error and t.error.code == "context_length_exceeded", "a long one")
end

-- stream
do
  local function stream(body)
    body.stream = true
    local status, text = client.call(s.port, "POST", CHAT, cjson.encode(body))
    eq(status, 200, "status of a stream")
    return text
  end
  local function normal(text)
    return (text:gsub('"created":%d+', '"created":0'):gsub('"id":"chatcmpl%-%x+"', '"id":"chatcmpl-0"')
      :gsub("perilune%-" .. pl.version():gsub("%p", "%%%0"), "perilune-V"))
  end
  local text = normal(stream { messages = messages, max_tokens = 3, temperature = 0,
    stream_options = { include_usage = true } })
  local three, next_text = solo({ messages = messages }, 3), m:tokenizer():stream()
  local tail = '],"created":0,"id":"chatcmpl-0","model":"t","object":"chat.completion.chunk",'
    .. '"system_fingerprint":"perilune-V","usage":'
  local function frame(delta, finish)
    return ('data: {"choices":[{"delta":{%s},"finish_reason":%s,"index":0,"logprobs":null}%snull}\n\n'):format(delta,
      finish or "null", tail)
  end
  local golden = { frame '"content":"","role":"assistant"' }
  for _, id in ipairs(three.ids) do
    local piece = next_text(id)
    if piece ~= "" then golden[#golden + 1] = frame('"content":' .. cjson.encode(piece):gsub("\\/", "/")) end
  end
  golden[#golden + 1] = frame("", '"length"')
  local usage = '{"completion_tokens":3,"completion_tokens_details":{"reasoning_tokens":0},"prompt_tokens":%d,'
    .. '"prompt_tokens_details":{"cached_tokens":%s},"total_tokens":%d}}'
  golden[#golden + 1] = 'data: {"choices":[' .. tail .. usage:format(three.prompt_tokens,
    text:match '"cached_tokens":(%d+)', three.prompt_tokens + 3) .. "\n\ndata: [DONE]\n\n"
  eq(text, table.concat(golden), "golden frames")

  -- logprobs: the same in both forms; their bytes make the text
  local body = { messages = messages, max_tokens = 8, temperature = 0, logprobs = true, top_logprobs = 3 }
  local _, t = post(body)
  local list, bytes = t.choices[1].logprobs.content, {}
  eq(#list, 8, "logprobs")
  for _, e in ipairs(list) do
    bytes[#bytes + 1] = string.char(unpack(e.bytes))
    ok(#e.top_logprobs == 3 and e.top_logprobs[1].logprob == e.logprob, "top_logprobs")
  end
  eq(table.concat(bytes), t.choices[1].message.content, "bytes make the text")
  local n = 0
  for data in stream(body):gmatch "data: ({[^\n]*)" do
    local l = cjson.decode(data).choices[1].logprobs
    for _, e in ipairs(l ~= cjson.null and l.content or {}) do
      n = n + 1
      eq(e.logprob, list[n].logprob, "streamed logprob")
      eq(e.token, list[n].token, "streamed token")
    end
  end
  eq(n, 8, "streamed logprobs")
end

-- refused, by name
local bad = {
  { "{}", "messages" }, { '{"messages":[]}', "messages" }, { '{"messages":"hi"}', "messages" },
  { '{"messages":[{"content":"x"}]}', "messages" }, { '{"messages":[{"role":"user"}]}', "messages" },
  { '{"messages":[{"role":"user","content":5}]}', "messages" },
  { '{"messages":[{"role":"wizard","content":"x"}]}', "messages" }, -- the template's own word
  { '{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]}', "messages" },
}
local user = '{"messages":[{"role":"user","content":"x"}],'
for field, value in pairs { tools = '[{"type":"function","function":{"name":"f"}}]', tool_choice = '"required"',
  response_format = '{"type":"json_schema","json_schema":{}}', functions = '[{"name":"f"}]', top_logprobs = "2",
  logprobs = "3", reasoning_effort = '"low"', chat_template = '"x"', modalities = '["audio"]', store = "true",
  service_tier = '"flex"', echo = "true", n = "129", max_completion_tokens = "-1", structured_outputs = "{}" } do
  bad[#bad + 1] = { user .. ('"%s":%s}'):format(field, value), field }
end
for _, b in ipairs(bad) do
  local status, t = post(b[1])
  ok(status == 400 and type(t) == "table" and t.error.param == b[2], b[1] .. ": " .. tostring(status) .. " "
    .. tostring(type(t) == "table" and t.error.message))
end
for field, value in pairs { response_format = '{"type":"text"}', tools = "[]", tool_choice = '"none"',
  service_tier = '"auto"', store = "false", modalities = '["text"]', parallel_tool_calls = "true",
  metadata = '{"a":"b"}', reasoning_effort = "null" } do
  local status, t = post(user .. ('"max_tokens":1,"%s":%s}'):format(field, value))
  ok(status == 200, field .. ": " .. tostring(type(t) == "table" and t.error and t.error.message))
end

s.signal(15)
eq(s.wait(), 0, "exit code")
m:close()
os.execute("rm -r " .. dir)

-- a model without a template says so
s = client.serve "tests/data/tiny-llama --no-log"
do
  local status, t = post(user .. '"max_tokens":1}')
  ok(status == 400 and t.error.message == "messages: this model has no chat template", "no template")
  ok(s.log():find "completions: tests/data/tiny%-llama has no chat template", "the log says where: " .. s.log())
end
s.signal(15)
s.wait()

-- nor does one whose template is none tell clients of the server's files
dir = client.templated "{% nothing_like_it %}"
s = client.serve(dir .. " --no-log --name t")
do
  local status, t = post(user .. '"max_tokens":1}')
  ok(status == 400 and t.error.message == "messages: this model has no chat template", "a template that is none")
  ok(s.log():find(dir .. "/chat_template.jinja:1: ", 1, true), "the log says where: " .. s.log())
end
os.execute("rm -r " .. dir)
s.signal(15)
s.wait()
verdicts.done()
