-- perilune chat: talk to a model, or to a server, turn by turn. At a terminal the answer streams, and what it holds
-- cannot be a command to the terminal; from a pipe each line is a turn.
local cli, common, err, file = require "pl.cli", require "pl.cli.common", require "pl.err", require "pl.file"
local json, line, talk = require "pl.json", require "pl.line", require "pl.talk"
local C = require("pl.abi").C
local M = { name = "chat", takes = "[MODEL]", about = "talk to a model, or to a server (--url)" }

function M.options(p)
  common.compute(p, true):args "?"
  common.tiers(p)
  p:option("--url", "A server with OpenAI's API, in place of a model: http://HOST:PORT."):convert(common.url)
    :argname "URL"
  p:option("--name", "With --url: the model's name. Default: the first that the server has."):argname "NAME"
  p:option("--key-file", "With --url: the API key is in this file."):argname "FILE"
  p:option("--system", "The system prompt."):argname "TEXT"
  p:option("--context", "Tokens of the whole conversation. Default: the model's, at most 4096.")
    :convert(common.whole(1)):argname "N"
  p:option("--max-tokens", "Of an answer, at most. Default: what the context has room for."):convert(common.whole(1))
    :argname "N"
  common.sampling(p)
  p:flag("--json", "A line of JSON for each turn: text, finish_reason, counts of tokens; or error.")
  p:epilog(M.help .. [[


From a pipe each line is a turn; the exit code is 1 if one failed. Sampling options that are not given are
the server's to choose with --url, and temperature 0 without.]])
end

M.help = [[
/reset          begin anew; the system prompt stays
/system TEXT    another system prompt; without TEXT, none
/help           this
/quit           leave, as Ctrl-D does; at a terminal also quit or exit, alone in a line
A \ at the end of a line: more follows. Ctrl-C stops an answer, and what there is of it stays.
A text that begins with / needs a blank in front.]]

local commands = {}
function commands.help() print(M.help) end
function commands.quit() return true end
commands.exit = commands.quit
function commands.reset(t)
  t:reset()
end
function commands.system(t, text)
  t.system = text ~= "" and text or nil
end
local names = { "/help", "/quit", "/reset", "/system" }

-- /word TEXT, and nothing else: a path is none.
local function command_of(text)
  local word, rest = text:match "^/(%a+)%s*$", ""
  if not word then word, rest = text:match "^/(%a+)%s+(.-)%s*$" end
  return word, rest
end

local function complain(what) io.stderr:write("perilune: ", what, "\n") end

-- What is to be said of how an answer ended.
local function remark(r, o)
  if r.finish == "cancelled" then return "stopped" end
  if r.finish ~= "length" then return nil end
  return o.max_tokens and r.completion_tokens == o.max_tokens
    and ("cut off after %d tokens (--max-tokens)"):format(o.max_tokens)
    or "cut off: the context is full; /reset begins anew"
end

-- One turn; false if it failed. Its own mistakes end no session; output that cannot be written does.
local function turn(t, o, text)
  local lost, last
  local clean = C.pl_host_is_tty(1) and talk.harmless() or function(s) return s end
  local function put(s)
    local ok, why = pcall(common.written, io.write(s) and io.flush())
    if not ok then
      lost = why
      error(why, 0)
    end
  end
  local ok, r = pcall(t.say, t, text, not o.json and function(piece)
    piece = clean(piece)
    last = piece ~= "" and piece:sub(-1) or last
    put(piece)
  end or nil)
  if lost then error(lost, 0) end
  if o.json then
    put(clean(json.encode(ok and { text = r.text, finish_reason = r.finish, prompt_tokens = r.prompt_tokens,
      cached_tokens = r.cached_tokens, completion_tokens = r.completion_tokens }
      or { error = tostring(r) })) .. "\n")
    return ok
  end
  if ok or last then put(last == "\n" and "" or "\n") end
  local why = ok and remark(r, o)
  if not ok then complain(tostring(r)) elseif why then complain(why) end
  return ok
end

-- A line of the user: a command or a turn. Returns true at the end, and whether it went well.
local function heed(t, o, text)
  if not text:find "%S" then return false, true end
  local word, rest = command_of(text)
  if not word then return false, turn(t, o, text) end
  if commands[word] then return commands[word](t, rest), true end
  complain(("no command /%s, want one of %s"):format(word, table.concat(names, " ")))
  return false, false
end

local function piped(t, o)
  local code = 0
  for text in file.lines(file.line) do
    C.pl_host_interrupted(true)
    local over, fine = heed(t, o, text)
    if not fine then code = 1 end
    if over then break end
  end
  return code
end

local function interactive(t, o)
  print(("%s   /help tells more, Ctrl-C stops an answer, Ctrl-D or quit leaves"):format(err.printable(t.name)))
  local keep, begun, warned = line.history "chat_history", nil, false
  while true do
    local text, why = line.read(begun and ">> " or "> ", table.concat(names, "\n"))
    if not text and (not why or warned) then break end
    warned = not text and not begun
    if warned then print "Ctrl-C again, or Ctrl-D, leaves"
    elseif not text then begun = nil
    else
      text = (begun or "") .. text
      local more = text:match "^(.*)\\$"
      begun = more and more .. "\n"
      if not more and (line.asks(text) == "quit" or heed(t, o, text)) then break end
    end
  end
  keep()
  return 0
end

function M.run(o)
  if (o.url == nil) == (o.model == nil) then cli.usage "want one of MODEL and --url" end
  common.only(o, o.url, "wants --url", { "name", "key_file" })
  common.only(o, o.model, "wants MODEL", common.of_models)
  common.only(o, o.model, "wants MODEL", { "context" })
  if o.model then common.only_drawn(o) end
  local of = common.sampling_of(o, { system = o.system, max_tokens = o.max_tokens })
  local m
  if o.url then
    of.url, of.name, of.key_file = o.url, o.name, o.key_file
  else
    m = require("pl.model").open(o.model, common.load_options(o, { batch = 1 }))
    m:chat_template() -- before the weights are loaded, if it is missing
    of.model = m:start(o.context)
  end
  local t = talk.new(of)
  local code = (C.pl_host_is_tty(0) and C.pl_host_is_tty(1) and interactive or piped)(t, o)
  if m then
    local dev = m.dev
    m:close()
    dev:close()
  end
  return code
end

return M
