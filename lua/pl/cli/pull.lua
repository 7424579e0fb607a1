-- perilune pull: fetch a model, and print the path to load it from.
local common = require "pl.cli.common"
local M = { name = "pull", takes = "NAME", about = "fetch a model from the Hugging Face hub, or a small one to try" }

function M.options(p)
  p:argument("name", "ORG/REPO, ORG/REPO:FILE or ORG/REPO:QUANT (as Q4_K_M); or smollm2, gemma3-270m,"
    .. " qwen2.5-coder-0.5b.")
  p:option("--dir", "Where models go, in a folder of their name. Default: perilune's folder in the cache.")
    :argname "DIR"
  p:option("--hub", "A mirror. Default: HF_ENDPOINT, or the hub itself."):convert(common.url):argname "URL"
  p:option("--revision", "A branch, tag or commit. Default: main."):convert(function(s)
    if s:find "^[%w%-_.]+$" then return s end
    return nil, "want a branch, tag or commit"
  end):argname "REV"
  p:option("--token-file", "Read the token for models that want one from this file. Default: HF_TOKEN_PATH.")
    :argname "FILE"
  p:option("--timeout", "Try again where nothing has come for so many seconds. Default: 30.")
    :convert(common.whole(1, 3600)):argname "S"
end

-- A bar on a terminal, five times a second at most.
local function bar()
  local C = require("pl.abi").C
  if not C.pl_host_is_tty(2) then return function() end, function() end end
  local shown, since, from, name = 0, nil, 0, nil
  local function show(f, have)
    local now = C.pl_now_s()
    if name ~= f.path then name, since, from = f.path, now, have end
    if now - shown < 0.2 and have < f.size then return end
    shown = now
    local share, rate = f.size > 0 and have / f.size or 1, (have - from) / math.max(now - since, 0.1)
    local label = require("pl.err").printable(f.path):sub(-32)
    io.stderr:write(("\r\27[K%-32s [%-24s] %3d%% %8.1f MB %6.1f MB/s"):format(label,
      ("#"):rep(math.floor(share * 24)), share * 100, have / 1e6, rate / 1e6), have >= f.size and "\n" or "")
    io.stderr:flush()
  end
  return show, function() if name then io.stderr:write "\r\27[K" end end
end

function M.run(o)
  local pull, client = require "pl.pull", require "pl.client"
  common.only(o, not pull.demo[o.name], "of models of the hub, not of " .. o.name,
    { "dir", "hub", "revision", "token_file", "timeout" })
  if pull.demo[o.name] then return pull.get_demo(o.name) end
  local token = o.token_file or os.getenv "HF_TOKEN_PATH"
  local hub = o.hub or os.getenv "HF_ENDPOINT"
  local progress, clear = bar()
  local path = pull.get(o.name, { dir = o.dir, hub = hub ~= "" and hub or nil, revision = o.revision,
    token = token and token ~= "" and client.token(token) or nil, stall_s = o.timeout or 30, progress = progress,
    say = function(text)
      clear()
      io.stderr:write("perilune: ", require("pl.err").printable(text), "\n")
    end })
  print(path)
  return 0
end

return M
