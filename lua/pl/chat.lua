-- A model's chat template, wherever the model keeps it: chat_template.jinja, chat_template.json or
-- tokenizer_config.json of a Hugging Face directory, the metadata of a GGUF file, a packed file, or a file of its own;
-- and the special tokens it may name.
local err, arg, file = require "pl.err", require "pl.arg", require "pl.file"
local template = require "pl.template"
local M = {}

local Chat = {}
Chat.__index = Chat

-- Templates by name: a text, or a list of { name, template }.
local function named(v, into, where)
  if type(v) == "string" then
    into.default, into[1] = v, into[1] or where
  elseif type(v) == "table" and v.kind == "list" then
    for i = 1, v.n do
      local at = type(v[i]) == "table" and v[i].at or {}
      if type(at.name) == "string" and type(at.template) == "string" then into[at.name] = at.template end
    end
    into[1] = into[1] or where
  end
  return into
end

local special = { "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token" }
local function tokens_of(config)
  local out = {}
  for _, k in ipairs(special) do
    local v = config.at[k]
    if type(v) == "table" and v.kind == "dict" then v = v.at.content end
    if type(v) == "string" then out[k] = v end
  end
  return out
end

local function read_json(path, text)
  local s = text or file.read(path, file.text)
  if not s then return nil end
  local ok, v = pcall(template.json, s)
  if not ok or type(v) ~= "table" or v.kind ~= "dict" then
    error(err.new(("%s: not a JSON object"):format(path)), 0)
  end
  return v
end

-- text(name): a file of the directory; where: what its name is shown with.
local function of_texts(text, where)
  local found, tokens = {}, {}
  local function object(name)
    local s = text(name)
    return s and read_json(where .. "/" .. name, s)
  end
  local config = object "tokenizer_config.json"
  if config then
    tokens = tokens_of(config)
    named(config.at.chat_template, found, where .. "/tokenizer_config.json")
  end
  local own = object "chat_template.json"
  if own then named(own.at.chat_template, found, where .. "/chat_template.json") end
  local plain = text "chat_template.jinja"
  if plain then found[1] = where .. "/chat_template.jinja" named(plain, found, found[1]) end
  return found, tokens
end

local function of_directory(dir)
  return of_texts(function(name)
    local text, why = file.read(dir .. "/" .. name, name == "chat_template.jinja" and template.LARGEST or file.text)
    if not text and not why:find "No such file" then error(err.new(why), 0) end
    return text
  end, dir)
end

local function of_gguf(path, c)
  local found, tokens = {}, {}
  local function text(key)
    local v = c.value(key)
    return type(v) == "string" and v or nil
  end
  named(text "tokenizer.chat_template", found, path)
  local names = c.value "tokenizer.chat_templates"
  for _, name in ipairs(type(names) == "table" and names or {}) do
    found[name] = text("tokenizer.chat_template." .. tostring(name))
  end
  if next(found) then
    local tok = require("pl.tokenizer").open(path, c)
    for key, name in pairs { bos = "bos_token", eos = "eos_token", unknown = "unk_token", padding = "pad_token" } do
      local id = c.value("tokenizer.ggml." .. key .. "_token_id")
      if type(id) == "number" and id >= 0 and id % 1 == 0 and id < tok.size then tokens[name] = tok:name(id) end
    end
    tok:close()
  end
  return found, tokens
end

-- Templates by name, where they are, and the special tokens. c: the checkpoint, if it is one.
local function look(path, c)
  if c and c.packed and c.format == "hf" then return of_texts(c.text, path) end
  if c and c.format == "gguf" then return of_gguf(path, c) end
  if file.is_directory(path) then return of_directory(path) end
  if path:find "%.safetensors$" then return of_directory(path:match "^(.*)/" or ".") end
  local found = {}
  if path:find "%.json$" then
    local config, why = read_json(path)
    if not config then error(err.new(why or path .. ": cannot be read"), 0) end
    return named(config.at.chat_template, found, path), tokens_of(config)
  end
  found.default, found[1] = file.need(path, template.LARGEST), path
  return found, {}
end

--- Find and read a template. path: a template's file, a GGUF file, a directory. o: name (of one of several; default
--- "default"), checkpoint (opened already), caps, any. Raises if there is none, if it has an error (with its line), or,
--- unless o.any, if not one of the conversations that it is tried on can be rendered.
function M.open(path, o)
  o = o or {}
  local checkpoints = require "pl.checkpoint"
  if not o.checkpoint then checkpoints.need(path) end
  local opened = not o.checkpoint and checkpoints.is_file(path) and checkpoints.open(path)
  local ok, found, tokens = pcall(look, path, o.checkpoint or opened or nil)
  if opened then opened:close() end
  if not ok then error(found, 0) end
  local where = found[1]
  found[1] = nil
  local name = o.name or "default"
  local text = found[name]
  if not text then
    local names = err.names(found)
    table.sort(names)
    if #names == 0 then error(err.new(path .. " has no chat template"), 0) end
    error(err.new(("%s has no chat template '%s'"):format(path, name), { err.known(names) }), 0)
  end
  local label = where .. (o.name and " '" .. name .. "'" or "")
  local chat = setmetatable({ template = template.compile(text, { name = label, caps = o.caps }), tokens = tokens,
    name = label }, Chat)
  local any, why = chat:probe()
  if not any and not o.any then error(why, 0) end
  return chat
end

--- One that was opened already, in another interpreter: of its source, name and tokens.
function M.of(t)
  return setmetatable({ template = template.compile(t.source, { name = t.name }), tokens = t.tokens, name = t.name },
    Chat)
end

-- What a template is tried on, once, when it is read.
local hello = { role = "user", content = "Hello" }
local tools = { { type = "function", ["function"] = { name = "f", description = "d", parameters = { type = "object",
  properties = { a = { type = "string", description = "d" } }, required = { "a" } } } } }
local probes = {
  { "user", { messages = { hello } } },
  { "system", { messages = { { role = "system", content = "Be brief" }, hello } } },
  { "tools", { messages = { hello }, tools = tools } },
  { "turns", { messages = { hello, { role = "assistant", content = "Hi" }, hello } } },
  { "parts", { messages = { { role = "user", content = { { type = "text", text = "Hello" } } } } } },
}

--- What the template can render: { user, system, tools, turns, parts = true or the error }; in `marks`, what it puts
--- in front of an answer.
function Chat:probe()
  local can, first, any = {}, nil, false
  for _, p in ipairs(probes) do
    local vars = { add_generation_prompt = true }
    for _, k in ipairs(special) do vars[k] = self.tokens[k] or "<s>" end -- a plain file does not say what they are
    for k, v in pairs(p[2]) do vars[k] = v end
    local text, e = self:render(vars)
    if e and e.kind == "internal" then error(e, 0) end
    can[p[1]] = text and true or e
    any, first = any or text ~= nil, first or e
    if p[1] == "user" and text then
      vars.add_generation_prompt = false
      local without = self:render(vars)
      if without and text:sub(1, #without) == without then self.opening = text:sub(#without + 1) end
    end
  end
  self.can = can
  return any, first
end

--- As template:render, with the model's special tokens where vars names none.
function Chat:render(vars)
  local all = {}
  for k, v in pairs(self.tokens) do all[k] = v end
  for k, v in pairs(vars) do all[k] = v end
  return self.template:render(all)
end

--- A prompt as transformers makes it: messages prepared, a generation prompt unless said otherwise; raises what the
--- template raises.
function Chat:prompt(vars)
  local all = {}
  for k, v in pairs(vars) do all[k] = v end
  if type(all.messages) ~= "table" then err.raise "render: want messages, a list" end
  all.messages = template.prepare(all.messages)
  if all.add_generation_prompt == nil and not all.continue_final_message then all.add_generation_prompt = true end
  local text, e = self:render(all)
  if not text then error(e, 0) end
  return text
end

Chat.__tostring = function(c) return "chat template of " .. c.name end

arg.functions("chat", M, { open = { "path", "string", "o?", "table" }, of = { "t", "table" } })
arg.methods("chat", Chat, arg.object("chat template", Chat), { render = { "vars", "table" },
  prompt = { "vars", "table" }, probe = {} })

return M
