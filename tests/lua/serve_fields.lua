-- What a request may say, field by field: each field of OpenAI's published requests, and of those that vLLM adds, is
-- honoured (the options of the answer change), or refused by its name; in every kind of body, known fields of the other
-- kinds too. What a complaint says: numbers as in JSON, types as in JSON.
local cjson = require "cjson"
local abi, openai, requests = require "pl.abi", require "pl.openai", require "pl.requests"
local verdicts = dofile "tests/verdicts.lua"
local ok, eq = verdicts.ok, verdicts.eq

local tok = require("pl.tokenizer").open "tests/data/tiny-llama"
local setup = requests.setup({ name = "tiny", vocab = tok.size, stops = { 2 }, pooling = "last", width = 192 }, 512,
  { name = "t", tokens = {}, template = { source = "{% for m in messages %}{{ m.content }}{{ shout }}{% endfor %}"
    .. "{% if add_generation_prompt %}<a>{% endif %}{% for t in tools or [] %}{{ t.function.name }}{% endfor %}" } })
local reader = requests.reader(setup, tok)
local model = cjson.decode(setup)

-- Options, or an answer, as a text that can be compared.
local function shape(v)
  if type(v) ~= "table" then return tostring(v) end
  local keys, out = {}, {}
  for k in pairs(v) do if k ~= "held" then keys[#keys + 1] = k end end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for _, k in ipairs(keys) do
    local x = v[k]
    if k == "ids" then
      x = {}
      for i = 0, v.n - 1 do x[i + 1] = tostring(abi.cast("const int32_t *", v.ids)[i]) end
      x = table.concat(x, ",")
    end
    out[#out + 1] = tostring(k) .. "=" .. shape(x)
  end
  return "{" .. table.concat(out, " ") .. "}"
end

local base = { completion = { prompt = '"The <s> cat"' }, chat = { messages = '[{"role":"user","content":"Hello"}]' },
  embedding = { input = '"The cat"' }, tokenize = { prompt = '"The <s> cat"' }, detokenize = { tokens = "[5,6]" } }
local function body_of(kind, ...)
  local all, parts = {}, {}
  for _, t in ipairs { base[kind], ... } do
    for k, v in pairs(t) do all[k] = v end
  end
  for k, v in pairs(all) do parts[#parts + 1] = ('"%s":%s'):format(k, v) end
  return "{" .. table.concat(parts, ",") .. "}"
end
-- 200 and what was understood; or a status, and the error
local function ask(kind, body)
  local o, status, said = reader:read(requests.kinds[kind], body)
  if o then return 200, shape(o) end
  if status == 200 and kind == "tokenize" then said = shape(openai.tokenize(cjson.decode(body), model)) end
  if status == 200 then return status, said end
  return status, cjson.decode(said).error
end

-- A value of each field that is not what it is without; a kind's own in front of the others'.
local values = {
  -- OpenAI's
  model = '"gpt-9"', messages = '[{"role":"user","content":"Bye"}]', prompt = '"A dog"', input = '"A dog"',
  max_tokens = "7", max_completion_tokens = "9", temperature = "0.5", top_p = "0.5", n = "2", stream = "true",
  stream_options = '{"include_usage":true}', stop = '"x"', presence_penalty = "1", frequency_penalty = "1",
  logit_bias = '{"5":1}', seed = "3", logprobs = "3", ["chat.logprobs"] = "true", top_logprobs = "2", echo = "true",
  tools = '[{"type":"function","function":{"name":"f"}}]', tool_choice = '"required"', user = '"u"',
  safety_identifier = '"u"', prompt_cache_key = '"k"', metadata = '{"a":"b"}', encoding_format = '"base64"',
  dimensions = "3", response_format = '{"type":"json_object"}', reasoning_effort = '"low"',
  functions = '[{"name":"f"}]', function_call = '"auto"', audio = '{"voice":"ash"}', prediction = '{"type":"content"}',
  modalities = '["text","audio"]', web_search_options = "{}", moderation = '{"model":"m"}',
  prompt_cache_retention = '"24h"', prompt_cache_options = '{"ttl":"30m"}', store = "true", service_tier = '"flex"',
  verbosity = '"low"', suffix = '"x"', best_of = "3", parallel_tool_calls = '"x"',
  -- beyond
  top_k = "4", min_p = "0.5", repetition_penalty = "1.5", stop_token_ids = "[5]", include_stop_str_in_output = "true",
  ignore_eos = "true", min_tokens = "3", cache_salt = '"s"', priority = "2", request_id = '"mine"', session_id = '"s"',
  add_special_tokens = "false", ["chat.add_special_tokens"] = "true", add_generation_prompt = "false",
  continue_final_message = "true", chat_template_kwargs = '{"shout":"!"}', chat_template = '"x"',
  skip_special_tokens = "false", spaces_between_special_tokens = "false", truncate_prompt_tokens = "3",
  prompt_logprobs = "1", allowed_token_ids = "[1]", bad_words = '["x"]', structured_outputs = '{"json":{}}',
  guided_json = "{}", guided_regex = '"x"', guided_choice = '["x"]', guided_grammar = '"x"', grammar = '"x"',
  json_schema = "{}", documents = '[{"text":"x"}]', use_beam_search = "true", length_penalty = "2",
  early_stopping = "true", logits_processors = '["x"]', logits_processor_pattern = '"x"', return_token_ids = "true",
  return_tokens_as_token_ids = "true", return_token_strs = "true", with_pieces = "true", mm_processor_kwargs = "{}",
  media_io_kwargs = "{}", kv_transfer_params = "{}", vllm_xargs = '{"a":1}', prompt_embeds = '"x"',
  enable_response_messages = "true", include_reasoning = "false", thinking_token_budget = "5",
  truncation_side = '"left"', repetition_detection = "{}", embed_dtype = '"float16"', endianness = '"big"',
  use_activation = "true", additional_data = "1", normalize = "false",
  -- of tokenizers
  content = '"A dog"', text = '"A dog"', tokens = "[7]", add_special = "false", parse_special = "true" }
-- what a field is said together with
local with = { top_logprobs = { logprobs = "true" }, stream_options = { stream = "true" },
  tools = { tool_choice = '"none"' }, content = { prompt = "null" }, text = { prompt = "null" } }
local of_client = { user = true, safety_identifier = true, prompt_cache_key = true, metadata = true, session_id = true }

local known = {}
for _, kind in ipairs { "completion", "chat", "embedding" } do
  for k in pairs(openai.fields[kind]) do known[k] = true end
end
for k in pairs(openai.neutral) do known[k] = true end

for _, kind in ipairs(requests.kinds) do
  local names = {}
  for k in pairs(known) do names[k] = true end
  for k in pairs(openai.fields[kind]) do names[k] = true end
  for name in pairs(names) do
    local what, own = kind .. "." .. name, openai.fields[kind][name]
    local value = values[what] or values[name]
    ok(value ~= nil, what .. ": no value to try, add a row")
    local more = own and with[name] or {}
    local _, before = ask(kind, body_of(kind, more))
    local status, after = ask(kind, body_of(kind, more, { [name] = value or "1" }))
    if name == "model" then
      ok(status == 404 and after.param == "model" and after.code == "model_not_found", what .. ": " .. status)
      status, after = ask(kind, body_of(kind, { model = '"tiny"' }))
      ok(status == 200 and after == before, what .. ": its own name")
    elseif of_client[name] then
      ok(status == 200 and after == before, what .. ": of the client")
    elseif status == 200 then
      ok(own ~= nil and after ~= before, what .. ": passed over: " .. tostring(after))
    else
      ok(status == 400 and after.param == name and after.message:find(name, 1, true) == 1,
        ("%s: %s %s"):format(what, status, type(after) == "table" and after.message or tostring(after)))
    end
    if not base[kind][name] then -- null is as good as absent
      status, after = ask(kind, body_of(kind, { [name] = "null" }))
      ok(status == 200 and after == select(2, ask(kind, body_of(kind))), what .. ": null")
    end
  end
  local status, after = ask(kind, body_of(kind, { nobody_knows_this = "[1,{}]" }))
  ok(status == 200 and after == select(2, ask(kind, body_of(kind))), kind .. ": what nobody knows is passed over")
end

-- what is published, by name: known every one
local published = [[
  messages model audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
  metadata modalities moderation n parallel_tool_calls prediction presence_penalty prompt_cache_key prompt_cache_options
  prompt_cache_retention reasoning_effort response_format safety_identifier seed service_tier stop store stream
  stream_options temperature tool_choice tools top_logprobs top_p user verbosity web_search_options
  prompt best_of echo suffix input dimensions encoding_format
  top_k min_p repetition_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens
  truncate_prompt_tokens prompt_logprobs allowed_token_ids bad_words add_generation_prompt continue_final_message
  add_special_tokens chat_template chat_template_kwargs structured_outputs priority request_id session_id cache_salt ]]
for name in published:gmatch "[%w_]+" do ok(known[name], name .. " is known") end

-- values that say what is done anyway are fine
for kind, list in pairs { completion = { n = "1", stream = "false", echo = "false", suffix = '""', best_of = "1",
    response_format = '{"type":"text"}', logprobs = "null", include_reasoning = "true", skip_special_tokens = "true" },
  chat = { tools = "[]", tool_choice = '"auto"', echo = "false", best_of = "1", parallel_tool_calls = "false",
    store = "false", add_special_tokens = "false", stream = "false" },
  embedding = { stream = "false", n = "1", normalize = "true", encoding_format = '"float"', embed_dtype = '"float32"',
    endianness = '"little"', logprobs = "false" },
  tokenize = { add_special = "true", return_token_strs = "false", stream = "false", with_pieces = "false" },
  detokenize = { stream = "false" } } do
  for name, value in pairs(list) do
    local status, after = ask(kind, body_of(kind, { [name] = value }))
    eq(status, 200, ("%s: %s = %s: %s"):format(kind, name, value, type(after) == "table" and after.message or ""))
  end
end
eq(ask("completion", '{"prompt":"a","n":null,"best_of":1}'), 200, "best_of beside null")
for _, key in ipairs { "continuous_usage_stats", "include_obfuscation" } do
  local status, e = ask("chat", body_of("chat", { stream = "true", stream_options = ('{"%s":true}'):format(key) }))
  ok(status == 400 and e.param == "stream_options" and e.message:find(key, 1, true), key)
  eq(ask("chat", body_of("chat", { stream = "true", stream_options = ('{"%s":false}'):format(key) })), 200, key)
end

-- What complaints say -----------------------------------------------------------------------------------------

local last = tok.size - 1
local whole = "want a whole number of at least 0"
local said = {
  { "completion", "[]", "the body is no JSON object" }, { "completion", " [1]", "the body is no JSON object" },
  { "completion", "null", "the body is no JSON object" }, { "completion", '"x"', "the body is no JSON object" },
  { "embedding", "[]", "the body is no JSON object" }, { "detokenize", "[]", "the body is no JSON object" },
  { "completion", '{"prompt":"a","stop":["a",5]}', "stop[1]: 5, want a text of 1 to 1024 bytes" },
  { "completion", '{"prompt":"a","stop":[null]}', "stop[0]: null, want a text of 1 to 1024 bytes" },
  { "completion", '{"prompt":"a","stop":[["x"]]}', "stop[0]: a list, want a text of 1 to 1024 bytes" },
  { "completion", '{"prompt":"a","stop":{"a":1}}', "stop: an object, want a list" },
  { "completion", '{"prompt":"a","stop":7}', "stop: 7, want a text of 1 to 1024 bytes" },
  { "completion", '{"prompt":"a","stop_token_ids":[5,null]}', "stop_token_ids[1]: null, " .. whole },
  { "completion", '{"prompt":"a","stop_token_ids":[5,9999999]}',
    ("stop_token_ids[1]: 9999999, want an id below %d"):format(tok.size) },
  { "completion", '{"prompt":"a","temperature":[1]}', "temperature: a list, want a number from 0 to 100" },
  { "completion", '{"prompt":"a","stream":{"a":1}}', "stream: an object, want a boolean" },
  { "completion", '{"prompt":"a","logit_bias":[1]}', "logit_bias: a list, want an object" },
  { "completion", '{"prompt":"a","logit_bias":{"5":null}}', "logit_bias['5']: null, want a number from -100 to 100" },
  { "completion", '{"prompt":5}', "prompt: 5, want a text, a list of texts, ids, or a list of lists of ids" },
  { "completion", '{"prompt":{"a":1}}',
    "prompt: an object, want a text, a list of texts, ids, or a list of lists of ids" },
  { "completion", '{"prompt":["a",1]}', "prompt[1]: 1, want a text" },
  { "completion", '{"prompt":["a",null]}', "prompt[1]: null, want a text" },
  { "completion", '{"prompt":[null]}', "prompt[0]: null, want a text or a list of ids" },
  { "completion", '{"prompt":[1,"a"]}', "prompt[1]: 'a', " .. whole },
  { "completion", '{"prompt":[1,null]}', "prompt[1]: null, " .. whole },
  { "completion", '{"prompt":[[1],"a"]}', "prompt[1]: 'a', want a list" },
  { "completion", '{"prompt":[[1],[2,-1]]}', "prompt[1][1]: -1, " .. whole },
  { "completion", '{"prompt":[[[5]]]}', "prompt[0][0]: a list, " .. whole },
  { "completion", '{"prompt":[5,99999999]}', ("prompt[1]: 99999999, want at most %d"):format(last) },
  { "completion", '{"prompt":["a",""],"add_special_tokens":false}', "prompt[1]: no tokens" },
  { "completion", '{"prompt":"","add_special_tokens":false}', "prompt: no tokens" },
  { "completion", '{"prompt":"a","min_tokens":20}', "min_tokens: 20, want at most max_tokens, which is 16" },
  { "completion", '{"prompt":"a","min_tokens":6,"max_tokens":5}',
    "min_tokens: 6, want at most max_tokens, which is 5" },
  { "chat", '{"messages":"x"}', "messages: 'x', want a list of messages" },
  { "chat", '{"messages":null}', "messages: missing" },
  { "chat", '{"messages":[{"role":"user","content":"a"},5]}', "messages[1]: 5, want an object with a role" },
  { "chat", '{"messages":[null]}', "messages[0]: null, want an object with a role" },
  { "chat", '{"messages":[{"role":"user","content":5}]}', "messages[0].content: 5, want a text or a list of parts" },
  { "chat", '{"messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url"}]}]}',
    "messages[0].content[1]: only parts of type 'text' are supported" },
  { "chat", '{"messages":[{"role":"user"}]}', "messages[0].content: missing" },
  { "chat", '{"messages":[{"role":"user","content":"a"}],"tools":[null]}', "tools[0]: null, want an object" },
  { "chat", '{"messages":[{"role":"user","content":"a"}],"tool_choice":5}', "tool_choice: 5, want a string" },
  { "embedding", '{"input":[5,-1]}', "input[1]: -1, " .. whole },
  { "embedding", '{"input":[5,99999999]}', ("input[1]: 99999999, want at most %d"):format(last) },
  { "embedding", '{"input":[[5],[6,99999999]]}', ("input[1][1]: 99999999, want at most %d"):format(last) },
  { "embedding", '{"input":""}', "input: empty, want at least a token" },
  { "embedding", '{"input":["a",""]}', "input[1]: empty, want at least a token" },
  { "embedding", '{"input":[[5],[]]}', "input[1]: empty, want at least a token" },
  { "embedding", '{"input":"a","encoding_format":["float"]}', "encoding_format: a list, want one of base64 float" },
  { "tokenize", "{}", "prompt: missing" }, { "tokenize", '{"prompt":["a"]}', "prompt: a list, want a string" },
  { "tokenize", '{"prompt":"a","text":"b"}', "text: not beside prompt" },
  { "detokenize", "{}", "tokens: missing" }, { "detokenize", '{"tokens":[5,"x"]}', "tokens[1]: 'x', " .. whole },
  { "detokenize", '{"tokens":[5,null]}', "tokens[1]: null, " .. whole },
  { "detokenize", '{"tokens":{"a":1}}', "tokens: an object, want a list" },
  { "detokenize", '{"tokens":[1,99999999]}', ("tokens[1]: 99999999, want an id below %d"):format(tok.size) },
}
for _, case in ipairs(said) do
  local status, e = ask(case[1], case[2])
  eq(status, 400, case[1] .. " " .. case[2])
  eq(type(e) == "table" and e.message or e, case[3], case[1] .. " " .. case[2])
end
eq(ask("completion", '{"prompt":"a","min_tokens":16}'), 200, "min_tokens: as many as it gets")
do -- too many for the context, though nobody says max_tokens
  local status, e = ask("chat", body_of("chat", { min_tokens = "600" }))
  ok(status == 400 and e.code == "context_length_exceeded" and e.message:find "600", "min_tokens over the context")
end

-- every token ends the answer, and none may yet
do
  local all = {}
  for i = 1, 9 do all[i] = i - 1 end
  local small = requests.reader(requests.setup({ name = "tiny", vocab = 9, stops = { 2 } }, 512), tok)
  local function try(more)
    local _, status, text = small:read(requests.kinds.completion, cjson.encode { prompt = { 5 }, stop_token_ids = all,
      min_tokens = more })
    return status and cjson.decode(text).error.param
  end
  eq(try(1), "stop_token_ids", "all tokens end an answer that may not end")
  eq(try(0), nil, "and are fine where it may")
  table.remove(all, 3)
  eq(try(1), "stop_token_ids", "with the model's own")
  table.remove(all)
  eq(try(1), nil, "all but one")
end

-- a model without a template: no path
do
  local none = requests.reader(requests.setup({ name = "tiny", vocab = tok.size, stops = {} }, 512), tok)
  local _, status, text = none:read(requests.kinds.chat, body_of "chat")
  eq(status, 400, "no template")
  eq(cjson.decode(text).error.message, "messages: this model has no chat template", "no template")
end

-- what is understood
do
  local function o_of(kind, body) return (reader:read(requests.kinds[kind], body)) end
  eq(o_of("completion", '{"prompt":"a","request_id":"mine"}').name, "mine", "request_id")
  eq(o_of("chat", body_of("chat", { add_special_tokens = "true" })).bos, true, "a chat with what stands in front")
  eq(o_of("completion", '{"prompt":"a"}').engine.stop[1], 2, "the model's stop")
  eq(o_of("completion", '{"prompt":"a","stop_token_ids":[7]}').engine.stop[2], 7, "and one more")
end

tok:close()
verdicts.done()
