-- The command line: `perilune VERB ...`, one file a verb in pl/cli; without a verb, the REPL. main() returns
-- the exit code: 0, 1 for a failure, 2 for a wrong call, 130 after Ctrl-C.
local err = require "pl.err"
local M = {}

local verbs = { "run", "chat", "serve", "attach", "score", "tokenize", "render", "check", "plan", "calibrate",
  "simulate", "bench", "pack", "pull" }
local repl_words = { ["-e"] = true }
M.INTERRUPTED = 130 -- as a shell says it: 128 and the number of the signal
local called, more = "perilune", "perilune help" -- how the verb is called, and what a wrong call is told

--- Raise a mistake in how the program was called.
function M.usage(msg)
  error(setmetatable({ usage = msg }, { __tostring = function(u) return u.usage end }), 0)
end

local function help()
  local rows = { { "perilune [FILE]", "the REPL, or run a Lua file with `pl` at hand" } }
  for _, name in ipairs(verbs) do
    local v = require("pl.cli." .. name)
    rows[#rows + 1] = { ("perilune %s %s"):format(v.name, v.takes), v.about }
  end
  local width, o = 0, { "perilune " .. require("pl.abi").version() .. ": language models from Lua recipes\n" }
  for _, r in ipairs(rows) do width = math.max(width, #r[1]) end
  for _, r in ipairs(rows) do o[#o + 1] = ("  %s%s  %s"):format(r[1], (" "):rep(width - #r[1]), r[2]) end
  o[#o + 1] = "\n`perilune help VERB` (or `perilune VERB --help`) tells more of each; --version prints the version."
  return table.concat(o, "\n")
end

local function is_verb(name)
  for _, v in ipairs(verbs) do if v == name then return true end end
  return false
end

local function run_verb(name, words)
  called, more = "perilune " .. name, "perilune help " .. name
  local verb = require("pl.cli." .. name)
  local o, shown, wrong, as = require("pl.cli.args").read(verb, words)
  called, more = "perilune " .. as, "perilune help " .. as
  if shown then
    print(shown)
    return 0
  end
  if wrong then M.usage(wrong) end
  return verb.run(o) or 0
end

local function no_verb(name)
  local near = err.closest(name, verbs)
  local shown = require("pl.cli.args").show(name)
  M.usage(near and ("no verb %s, did you mean '%s'?"):format(shown, near)
    or ("no verb %s, want one of %s, or a Lua file"):format(shown, table.concat(verbs, " ")))
end

local function dispatch(words)
  local first, second = words[1], words[2]
  if first == "--help" or first == "-h" or first == "help" then
    if not second or second:find "^%-" or second == "help" then
      print(help())
      return 0
    end
    if not is_verb(second) then no_verb(second) end
    return run_verb(second, { words[3] or "--help", "--help" })
  elseif first == "--version" then
    print("perilune " .. require("pl.abi").version())
    return 0
  end
  if is_verb(first) then return run_verb(first, { unpack(words, 2) }) end
  if first == "" then M.usage "an empty text, want a verb or a Lua file" end
  if first and first:sub(1, 1) == "-" and not repl_words[first] then
    local near = err.closest(first, { "--help", "--version" })
    M.usage(("%s: no such option%s"):format(err.printable(first), near and (", did you mean '%s'?"):format(near) or ""))
  end
  if first and not repl_words[first] then
    if not first:find "[./]" and not io.open(first) then no_verb(first) end
    local kind = require("pl.checkpoint").kind(first)
    if kind and (kind ~= "hf" or first:find "%.safetensors$" or io.open(first .. "/config.json")) then
      M.usage(("%s: a model, want a verb before it: run, chat, serve, plan ..."):format(err.printable(first)))
    end
  end
  return require("pl.repl").main(words)
end

function M.main()
  local words = { unpack(arg, 1) }
  local code
  local ok, e = xpcall(function() code = dispatch(words) end, function(e)
    if type(e) == "table" then return e end
    return err.from(e)
  end)
  if ok then return code end
  if type(e) == "table" and rawget(e, "usage") then
    io.stderr:write(called, ": ", err.text(e), "\ntry: ", more, "\n")
    return 2
  end
  io.stderr:write("perilune: ", err.text(e), "\n")
  return err.is(e) and e.code == "ECANCEL" and M.INTERRUPTED or 1
end

return M
