-- Chat templates: Hugging Face's Jinja dialect, read once and rendered by closures within caps. What transformers does,
-- byte for byte; anything unknown is an error with the template's line.
local err, arg, plain = require "pl.err", require "pl.arg", require "pl.json"
local base, json = require "pl.jinja.base", require "pl.jinja.json"
local parse, statement = require "pl.jinja.parse", require "pl.jinja.statement"
local value, text = require "pl.jinja.value", require "pl.jinja.text"
local globals, object = require "pl.jinja.globals", require "pl.jinja.object"
local R, none = base.R, base.none
local M = { LARGEST = 2 ^ 20 }

local Template = {}
Template.__index = Template

local list_mt = getmetatable(plain.list {})
local function is_list(t) return getmetatable(t) == list_mt end

-- Line n of a text, at most 200 bytes.
local function line_of(s, n)
  local i = 0
  for l in (s .. "\n"):gmatch "([^\n]*)\r?\n" do
    i = i + 1
    if i == n then return l:sub(1, 200) end
  end
end

-- What was thrown, as an error object with the template's line; kind: raised, undefined, python, sandbox, limit, other,
-- syntax; internal is a bug of ours.
local function report(t, e)
  local kind, msg, line = "internal", tostring(e), R.line
  if base.is_error(e) then
    kind, msg, line = e.kind, e.msg, e.line
  elseif err.is(e) then
    msg = e.msg
  elseif msg:find "stack overflow" then
    kind, msg = "limit", "the template goes deeper than it may"
  elseif msg:find "not enough memory" then
    kind, msg = "limit", "not enough memory"
  end
  if line and line < 1 then line = nil end
  local out = err.new(msg, nil, t.name, line)
  out.kind, out.text = kind, line and line_of(t.source, line)
  return out
end

-- f outside a rendering: what it makes is the caller's, and not counted.
local function freely(f, ...)
  local steps, bytes = R.steps, R.bytes
  R.steps, R.bytes, R.depth = math.huge, math.huge, 0
  local ok, r, more = pcall(f, ...)
  R.steps, R.bytes = steps, bytes
  if not ok then error(r, 0) end
  return r, more
end

local function with_caps(t, f, ...)
  local saved = {}
  for k, v in pairs(R) do saved[k] = v end
  local caps = t.caps
  R.steps, R.bytes, R.depth, R.deepest, R.line, R.out = caps.steps, caps.bytes, 0, caps.depth, 0, { n = 0 }
  local ok, r = pcall(f, ...)
  local e = not ok and report(t, r) or nil
  for k, v in pairs(saved) do R[k] = v end
  if ok then return r end
  return nil, e
end

--- Read a template. o: name (for errors), caps { steps, bytes, output, depth }. Raises an error with the template's
--- line for syntax that Jinja lacks, for include, import, extends and block, and for a filter, test or function that
--- nobody knows. Within a branch (`if`) the last three are errors where they are reached, as in Jinja; t.unknown lists
--- them.
function M.compile(source, o)
  o = o or {}
  local caps = {}
  for k, v in pairs(base.caps) do caps[k] = o.caps and o.caps[k] or v end
  local t = setmetatable({ source = source, name = o.name or "template", caps = caps }, Template)
  if #source > M.LARGEST then
    error(err.new(("%s: a template of more than %d bytes"):format(t.name, M.LARGEST)), 0)
  end
  local ok, e = with_caps(t, function()
    t.run, t.unknown = statement.compile(parse.parse(source))
    return true
  end)
  if not ok then error(e, 0) end
  return t
end

--- A JSON text as templates see it: keys in order, 1 and 1.0 told apart. What t:render takes; raises if it is none.
function M.json(s)
  local v, why = freely(json.read, s)
  if v == nil then err.raise("json: " .. why) end
  return v
end

--- The JSON text of such a value.
function M.encode(v) return freely(json.dump, v, {}) end

-- A dict that is changed in one key, as a new one.
local function with(d, key, v)
  local out = object.update(base.dict(), { n = 1, d })
  base.put(out, key, v)
  return out
end
local function with_item(l, i, v)
  local out = value.to_list(l)
  out[i] = v
  return out
end

local MARK = "CONTINUE_FINAL_MESSAGE_TAG"
local function cannot(msg) base.fail("python", msg) end

-- The messages, the last one's text marked at its end; and that text.
local function marked(messages)
  local last = base.kind(messages) == "list" and messages[messages.n]
  if not last or base.kind(last) ~= "dict" then cannot "continue_final_message: there is no message to continue" end
  local content = last.at.content
  if content == nil then cannot "continue_final_message: the last message has no content" end
  if base.kind(content) == "list" then
    for i = content.n, 1, -1 do
      local part = content[i]
      local s = base.kind(part) == "dict" and part.at.text
      if s and base.text(s) then
        local parts = with_item(content, i, with(part, "text", s .. MARK .. " "))
        return with_item(messages, messages.n, with(last, "content", parts)), s
      end
    end
    cannot "continue_final_message: the last message has no text to continue"
  end
  if type(content) ~= "string" then cannot "continue_final_message: the last message's content is no text" end
  return with_item(messages, messages.n, with(last, "content", content .. MARK .. " ")), content
end

local function cut(s, was)
  local at = text.rfind(s, MARK)
  if not at then
    cannot(s:find(text.strip(was), 1, true)
      and "continue_final_message: the template does not end with the last message"
      or "continue_final_message: the template leaves the last message out")
  end
  if s:sub(at, at + #MARK) == MARK .. " " then return s:sub(1, at - 1) end
  return text.rstrip(s:sub(1, at - 1))
end

--- Render: vars are the template's variables (messages, tools, add_generation_prompt, bos_token, ...): values of
--- M.json, or Lua's own (lists, tables with text keys, texts, numbers, booleans). Returns the text; or nil and an error
--- object { kind, msg, line }. `tools` and `documents` are None unless given. continue_final_message = true: the last
--- message is left open, to be gone on with.
function Template:render(vars)
  return with_caps(self, function()
    local scope, continue, was = { tools = none, documents = none }, vars.continue_final_message, nil
    R.steps, R.bytes = math.huge, math.huge
    for k, v in pairs(vars) do
      local ok, x = pcall(json.from_lua, v, plain.null, is_list)
      if not ok then
        if type(x) == "table" and x.json then base.fail("python", "%s: %s has no JSON value", k, x.json) end
        error(x, 0)
      end
      scope[k] = x
    end
    scope.continue_final_message = nil
    if continue and continue ~= none and continue ~= plain.null then
      scope.messages, was = marked(scope.messages == nil and none or scope.messages)
    end
    R.steps, R.bytes = self.caps.steps, self.caps.bytes
    self.run { [0] = scope }
    local out = table.concat(R.out, "", 1, R.out.n)
    if #out > self.caps.output then base.fail("limit", "a text of more than %d bytes", self.caps.output) end
    return was and cut(out, was) or out
  end)
end

local reasoning = { "reasoning_content", "thinking", "reasoning" }
local function prepare(messages)
  messages = json.from_lua(messages, plain.null, is_list)
  if base.kind(messages) ~= "list" then return messages end
  local all = {}
  for i = 1, messages.n do
    local m = messages[i]
    if base.kind(m) == "dict" then
      local said
      for _, k in ipairs(reasoning) do
        local v = m.at[k]
        if said == nil and v ~= none then said = v end
      end
      local out = base.dict()
      if said ~= nil then base.put(out, "thinking", said) end
      for _, k in ipairs(m.keys) do
        if m.at[k] ~= none then base.put(out, k, m.at[k]) end
      end
      if said ~= nil then base.put(out, "reasoning_content", said) end
      out.own, m = false, out
    end
    all[i] = m
  end
  local l = base.list(all, messages.n)
  l.own = false
  return l
end
--- Messages as transformers gives them to a template: keys whose value is null are dropped, and reasoning stands under
--- both its names, so that it need not know which one a model reads.
function M.prepare(messages) return freely(prepare, messages) end

--- The time that strftime_now gives in place of the clock's: seconds as os.time counts them, or nil.
function M.set_now(seconds) globals.now = seconds end

Template.__tostring = function(t) return "chat template " .. t.name end

arg.functions("template", M, { compile = { "source", "string", "o?", "table" }, json = { "text", "string" },
  encode = { "value", arg.any }, prepare = { "messages", "table" }, set_now = { "seconds?", "number" } })
arg.methods("template", Template, arg.object("template", Template), { render = { "vars", "table" } })

return M
