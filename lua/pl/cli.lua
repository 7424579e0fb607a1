-- The command line: `perilune VERB ...`, one file a verb in pl/cli; without a verb, the REPL. main() returns
-- the exit code: 0, 1 for a failure, 2 for a wrong call, 130 after Ctrl-C.
local err = require "pl.err"
local M = {}

local verbs = { "run", "chat", "serve", "attach", "score", "tokenize", "render", "check", "plan", "calibrate",
  "simulate", "bench", "pack", "pull" }
local may_be_empty = { prompt = true, system = true, ids = true, eval = true } -- of the arguments of verbs
local repl_words = { ["-e"] = true }
M.INTERRUPTED = 130 -- as a shell says it: 128 and the number of the signal
local tries = "perilune --help" -- what a wrong call is told

--- Raise a mistake in how the program was called.
function M.usage(msg)
  error(setmetatable({ usage = msg }, { __tostring = function(u) return u.usage end }), 0)
end

local function parser_of(verb)
  local p = require "argparse"(("perilune %s"):format(verb.name), verb.about)
  p._handle_options = true
  verb.options(p)
  return p
end

local function help()
  local o = { "perilune " .. require("pl.abi").version() .. ": language models from Lua recipes\n",
    "  perilune [FILE]              the REPL, or run a Lua file with `pl` at hand" }
  for _, name in ipairs(verbs) do
    local v = require("pl.cli." .. name)
    o[#o + 1] = ("  perilune %-18s  %s"):format(v.name .. " " .. v.takes, v.about)
  end
  o[#o + 1] = "\n`perilune VERB --help` tells more of each; --version prints the version."
  return table.concat(o, "\n")
end

local function run_verb(verb, args)
  local p = parser_of(verb)
  tries = ("perilune %s --help"):format(verb.name)
  local ok, o = p:pparse(args)
  if not ok then
    io.stderr:write(p:get_usage(), "\n\nperilune: ", tostring(o), "\n")
    return 2
  end
  for key, v in pairs(o) do
    if v == "" and not may_be_empty[key] then M.usage(("%s: an empty text"):format((key:gsub("_", "-")))) end
  end
  return verb.run(o) or 0
end

local function dispatch(args)
  local first = args[1]
  if first == "--help" or first == "-h" or first == "help" then
    print(help())
    return 0
  elseif first == "--version" then
    print("perilune " .. require("pl.abi").version())
    return 0
  end
  for _, name in ipairs(verbs) do
    if first == name then return run_verb(require("pl.cli." .. name), { unpack(args, 2) }) end
  end
  if first and first:sub(1, 1) == "-" and not repl_words[first] then
    M.usage(("unknown option '%s'"):format(first))
  end
  if first and not repl_words[first] and not first:find "[./]" and not io.open(first) then
    local near = err.closest(first, verbs)
    M.usage(("no verb '%s'"):format(first) .. (near and (", did you mean '%s'?"):format(near) or ""))
  end
  return require("pl.repl").main(args)
end

function M.main()
  local args = { unpack(arg, 1) }
  local code
  local ok, e = xpcall(function() code = dispatch(args) end, function(e)
    if type(e) == "table" then return e end
    return err.from(e)
  end)
  if ok then return code end
  io.stderr:write("perilune: ", err.text(e), "\n")
  if type(e) == "table" and rawget(e, "usage") then
    io.stderr:write("try: ", tries, "\n")
    return 2
  end
  return err.is(e) and e.code == "ECANCEL" and M.INTERRUPTED or 1
end

return M
