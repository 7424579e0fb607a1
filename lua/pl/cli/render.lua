-- perilune render: conversations on stdin through a chat template, texts on stdout.
local common, err, file, json = require "pl.cli.common", require "pl.err", require "pl.file", require "pl.json"
local M = { name = "render", takes = "MODEL", about = "conversations through a chat template" }

local function time(s)
  local y, mo, d, h, mi, sec = s:match "^(%d%d%d%d)-(%d%d)-(%d%d)[T ]?(%d?%d?):?(%d?%d?):?(%d?%d?)$"
  if not y then return nil, "want a time: 2026-01-15 or '2026-01-15 09:30:05'" end
  return os.time { year = y, month = mo, day = d, hour = tonumber(h) or 0, min = tonumber(mi) or 0,
    sec = tonumber(sec) or 0 }
end

function M.options(p)
  p:argument("model", "A template (FILE.jinja), a GGUF file, or a directory with tokenizer files.")
  p:option("--name", "Which of a model's templates, if it has several (tool_use, rag ...)."):argname "NAME"
  p:option("--now", "The time that strftime_now gives. Default: now."):convert(time):argname "TIME"
  p:flag("--prepare", "Drop keys that are null and copy reasoning under both its names first, as transformers does.")
  p:flag("--probe", "Say what the template can render, and read nothing.")
  p:epilog([[A line in: {"messages": [...], "tools": [...], "kwargs": {"add_generation_prompt": true, ...}}; other
fields are ignored. A line out: {"text": ...}, or {"error": ..., "line": the template's}; the exit code is 1 if a line
in was not of this form (kind "input").]])
end

local function probe(chat)
  for _, what in ipairs { "user", "system", "tools", "turns", "parts" } do
    local can = chat.can[what]
    print(("%-7s %s"):format(what, can == true and "yes" or "no: " .. err.printable(can.msg)))
  end
  print(("opening %s"):format(chat.opening and json.encode(chat.opening) or "?"))
  for _, u in ipairs(chat.template.unknown) do print(("unknown line %d: %s"):format(u.line, err.printable(u.msg))) end
end

-- What a line asks to be rendered; nil and why it cannot be.
local function vars_of(template, line)
  local ok, row = pcall(template.json, line)
  if not ok or type(row) ~= "table" or row.kind ~= "dict" then
    return nil, "not a JSON object" .. (ok and "" or ": " .. row.msg)
  end
  local vars, kwargs = { messages = row.at.messages, tools = row.at.tools }, row.at.kwargs
  if type(kwargs) == "table" and kwargs.kind == "dict" then
    for _, k in ipairs(kwargs.keys) do vars[k] = kwargs.at[k] end
  elseif kwargs ~= nil then
    return nil, "kwargs: want an object"
  end
  local m = vars.messages
  if type(m) ~= "table" or m.kind ~= "list" and m.kind ~= "dict" then
    return nil, ('messages: %s, want a list of {"role": ..., "content": ...}'):format(m == nil and "missing"
      or template.encode(m):sub(1, 60))
  end
  return vars
end

function M.run(o)
  common.only(o, not o.probe, "not with --probe, which reads no conversation", { "prepare" })
  local template = require "pl.template"
  template.set_now(o.now)
  local chat = require("pl.chat").open(o.model, { name = o.name, any = true })
  if o.probe then
    probe(chat)
    return 0
  end
  common.reads_stdin "conversations, a JSON object a line,"
  local n, code = 0, 0
  for line in file.lines(file.line) do
    n = n + 1
    if line:find "%S" then
      local vars, why = vars_of(template, line)
      local text, e
      if not vars then
        e, code = { msg = ("line %d: %s"):format(n, why), kind = "input" }, 1
      else
        if o.prepare then vars.messages = template.prepare(vars.messages) end
        text, e = chat:render(vars)
      end
      common.written(io.write(json.encode(text and { text = text } or { error = e.msg, line = e.line or json.null,
        kind = e.kind }), "\n") and io.flush())
    end
  end
  return code
end

return M
