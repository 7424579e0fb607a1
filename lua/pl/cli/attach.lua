-- perilune attach: a REPL in a running server, over its Unix socket.
local attach, common, err = require "pl.attach", require "pl.cli.common", require "pl.err"
local files, json, line = require "pl.file", require "pl.json", require "pl.line"
local C = require("pl.abi").C
local M = { name = "attach", takes = "[SOCKET]", about = "look into a running server; with --write, change it" }

function M.options(p)
  p:argument("socket", "Its socket (the server prints the path), or its deployment file. Default: by --port."):args "?"
  p:option("--port", "The server's port. Default: 8080."):convert(common.whole(1, 65535)):argname "N"
  p:flag("--write", "Changes are allowed: policy, pause, drain, cancel, reload.")
  p:option("--eval", "Run this text, print what it returns, and leave."):argname "TEXT"
  p:option("--policy", "Replace the policy by this file's text, and leave; with --write."):argname "FILE"
  common.json(p)
end

local function path_of(o)
  if o.socket and not o.socket:find "%.lua$" then return o.socket end
  if o.socket then
    local s = require("pl.deploy").settings(require("pl.deploy").read(o.socket))
    if s.socket == false then
      error(err.new(('attach: %s: socket = "none": its server has no socket'):format(o.socket)), 0)
    elseif not s.socket and s.http.port == 0 then
      error(err.new(("attach: %s: port = 0: want the socket, whose path the server prints"):format(o.socket)), 0)
    end
    return s.socket or attach.path(s.http.port, s.dir)
  end
  local port = o.port or 8080
  local usual = attach.path(port)
  for _, path in ipairs { usual, attach.path(port, ".") } do
    if os.rename(path, path) then return path end -- it is there
  end
  local p, live = io.popen("ls -d '" .. usual:match("^(.*)/"):gsub("'", "'\\''") .. "'/perilune-*.sock 2>/dev/null"), {}
  for path in p:lines() do
    if #live < 5 and attach.is_live(path) then live[#live + 1] = path end
  end
  p:close()
  error(err.new(("attach: %s: nothing is there, want --port N, a socket, or a deployment file"):format(usual),
    { #live > 0 and "servers listen at " .. table.concat(live, " ") or "a server prints the path of its socket" }), 0)
end

-- Shows an answer; returns the exit code.
local function show(r, as_json)
  if not r.ok then
    io.stderr:write(tostring(r.error), "\n")
    return 1
  end
  if as_json then print(json.encode(r.value == require("cjson").null and json.null or r.value))
  elseif r.text and r.text ~= "" then print(r.text) end
  io.flush()
  return 0
end

local words = table.concat({ "requests()", "pages()", "metrics()", "http()", "prof()", "incidents()", "policy()",
  "server()", "set_policy", "trace", "pause()", "resume()", "drain()", "cancel", "reload()", "help" }, "\n")

local function lines(prompt)
  if not C.pl_host_is_tty(0) then return files.lines(files.line) end
  return function() return line.read(prompt, words) end
end

function M.run(o)
  common.only(o, not o.socket, "the socket is given already", { "port" })
  common.only(o, o.write, "wants --write", { "policy" })
  common.only(o, not o.policy, "want one of --eval and --policy", { "eval" })
  local c = attach.connect(path_of(o), o.write, function(text) io.stderr:write("perilune: ", text, "\n") end)
  if o.policy then
    return show(c.call(("set_policy(%q)"):format(files.need(o.policy, files.recipe) .. "\n"), o.json), o.json)
  end
  if o.eval then return show(c.call(o.eval, o.json), o.json) end
  if C.pl_host_is_tty(0) then
    print(("%s, perilune %s%s   help tells more, Ctrl-D or quit leaves"):format(c.hello.model, c.hello.version,
      o.write and ", for writing" or ""))
  end
  local code = 0
  for text in lines(o.write and "attach! " or "attach> ") do
    local what = line.asks(text)
    if what == "quit" then break end
    if what then print(c.hello.help)
    elseif text:find "%S" then code = math.max(code, show(c.call(text, o.json), o.json)) end
  end
  c.close()
  return C.pl_host_is_tty(0) and 0 or code
end

return M
