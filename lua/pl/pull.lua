-- Models from the Hugging Face hub, or a mirror of it. What to fetch is chosen from the hub's own list of the files of
-- a repository, which has their sizes and, for large ones, their sha256. A file is written beside its name, as
-- NAME.HASH.part, and gets its name when it is whole and right; a second start goes on where the first one stopped, and
-- waits while that one is still at work.
local abi, err, json, client = require "pl.abi", require "pl.err", require "pl.json", require "pl.client"
local C, e, check = abi.C, abi.err, abi.check
local M = {}

M.hub = "https://huggingface.co"
M.demo = { smollm2 = true, ["gemma3-270m"] = true, ["qwen2.5-coder-0.5b"] = true }
local MAX_LIST, MAX_FILE, MAX_FILES = 32 * 2 ^ 20, 2 ^ 43, 20000
local TRIES = 5 -- that bring nothing new, one after the other
M.pause = 1     -- seconds before the second try, twice as long before each later one

local function fail(fmt, ...) error(err.new(err.printable(fmt:format(...))), 0) end

local function quoted(s) return "'" .. s:gsub("'", "'\\''") .. "'" end

--- The directory that models go to.
function M.cache()
  local base = os.getenv "XDG_CACHE_HOME"
  if not base or base == "" then
    local home = os.getenv "HOME"
    if not home or home == "" then fail "neither XDG_CACHE_HOME nor HOME is set: want --dir" end
    base = home .. "/.cache"
  end
  return base .. "/perilune"
end

-- "org/repo" and what is behind the colon.
local function parse(name)
  local repo, which = name:match "^([^:]+):?(.*)$"
  local is_name = (repo or ""):find "^[%w][%w%-_.]*/[%w][%w%-_.]*$"
  if not is_name or name:find("..", 1, true) then
    local names = err.names(M.demo)
    table.sort(names)
    fail("no model '%s', want ORG/REPO, ORG/REPO:FILE, ORG/REPO:QUANT, or one of %s", name, table.concat(names, " "))
  end
  return repo, which ~= "" and which or nil
end

--- Is this the name of a file below a directory, and of no other?
function M.is_safe(path)
  if type(path) ~= "string" or #path == 0 or #path > 512 or path:find "[%c\\]" or path:find "^/" or path:find "/$" then
    return false
  end
  for part in (path .. "/"):gmatch "([^/]*)/" do
    if part == "" or part == "." or part == ".." then return false end
  end
  return true
end

-- The hub's list: { commit, { path, size, sha256 }, ... }, checked.
local function list_of(c, o, repo)
  local url = ("%s/api/models/%s/revision/%s?blobs=true"):format(o.hub, repo, o.revision)
  local status, body = c:call({ url = url, token = o.token, connect_s = 30, stall_s = o.stall_s, total_s = 120,
    max_redirects = 5 }, MAX_LIST)
  if status == 401 or status == 403 or status == 404 then
    fail("%s: %s (no such model, or one that wants a token: --token-file)", repo, client.problem(status, body))
  elseif status ~= 200 then
    fail("%s: %s", url, client.problem(status, body))
  end
  local ok, t = pcall(json.decode, body)
  if not ok or type(t) ~= "table" or type(t.siblings) ~= "table" then fail("%s: not a list of files", url) end
  local commit = type(t.sha) == "string" and t.sha:match "^%x+$" or fail("%s: no commit in the answer", url)
  if #t.siblings > MAX_FILES then fail("%s: more than %d files", url, MAX_FILES) end
  local list = { commit = commit }
  for _, s in ipairs(t.siblings) do
    if type(s) ~= "table" or type(s.rfilename) ~= "string" then fail("%s: a file without a name", url) end
    local lfs = type(s.lfs) == "table" and s.lfs or {}
    local f = { path = s.rfilename, size = tonumber(lfs.size or s.size),
      sha256 = type(lfs.sha256) == "string" and lfs.sha256:lower() or nil }
    if f.sha256 and not f.sha256:find("^" .. ("%x"):rep(64) .. "$") then
      fail("%s: '%s' is no sha256", f.path, f.sha256:sub(1, 80))
    end
    list[#list + 1] = f
  end
  return list
end

local function gguf_files(list)
  local out = {}
  for _, f in ipairs(list) do if f.path:lower():find "%.gguf$" then out[#out + 1] = f end end
  return out
end

-- A quantisation's name in a file's: not within a longer word.
local function is_quant(path, quant)
  local at, text, q = 1, "/" .. path:lower(), quant:lower()
  while true do
    local a, b = text:find(q, at, true)
    if not a then return false end
    if not text:sub(a - 1, a - 1):find "[%w_]" and not text:sub(b + 1, b + 1):find "[%w_]" then return true end
    at = a + 1
  end
end

local parts_of = "%-(%d+)%-of%-(%d+)%.gguf$"
local wanted = { "^config%.json$", "^generation_config%.json$", "^tokenizer", "^special_tokens_map%.json$",
  "^vocab%.json$", "^merges%.txt$", "^chat_template", "^added_tokens%.json$", "%.safetensors$",
  "%.safetensors%.index%.json$", "%.tiktoken$", "^preprocessor_config%.json$" }

-- Which files of a list are meant; and whether together they are a directory.
local function choose(list, repo, which)
  local gguf = gguf_files(list)
  local function names(of)
    local out = {}
    for i = 1, math.min(#of, 20) do out[i] = of[i].path end
    return table.concat(out, " ") .. (#of > 20 and " ..." or "")
  end
  if which then
    for _, f in ipairs(list) do if f.path == which then return { f } end end
    local found = {}
    for _, f in ipairs(gguf) do if is_quant(f.path, which) then found[#found + 1] = f end end
    table.sort(found, function(a, b) return a.path < b.path end)
    local _, n = (found[1] or { path = "" }).path:match(parts_of)
    if #found == 1 or n and tonumber(n) == #found then return found end
    if #found > 1 then fail("%s: '%s' is in %d names, want one of: %s", repo, which, #found, names(found)) end
    fail("%s has no file and no quantisation '%s'; GGUF files: %s", repo, which, #gguf > 0 and names(gguf) or "none")
  end
  if #gguf == 1 then return gguf end
  if #gguf > 1 then fail("%s: which of its files? %s:QUANT or %s:FILE, of: %s", repo, repo, repo, names(gguf)) end
  local found, weights = {}, false
  for _, f in ipairs(list) do
    for _, pattern in ipairs(wanted) do
      if f.path:find(pattern) and not f.path:find("/", 1, true) then
        found[#found + 1], weights = f, weights or f.path:find "%.safetensors$" ~= nil
        break
      end
    end
  end
  if not weights then fail("%s has neither GGUF nor safetensors files", repo) end
  return found, true
end

local function size_of(path)
  local f = io.open(path, "rb")
  if not f then return nil end
  local n = f:seek "end"
  f:close()
  return n
end

local function sha256(path)
  local hex = abi.new "char[65]"
  check(C.pl_sha256_file(path, hex, e))
  return abi.string(hex)
end

local function pause(s)
  if C.pl_host_wait(-1, s) < 0 then
    C.pl_host_interrupted(true)
    err.raise("interrupted", nil, "ECANCEL")
  end
end

-- What libcurl says that will not be otherwise a moment later: a protocol or address that it does not take, too many
-- redirects, certificates.
local hopeless = { [1] = true, [3] = true, [4] = true, [47] = true, [51] = true, [58] = true, [59] = true, [60] = true,
  [77] = true, [83] = true, [90] = true, [91] = true }

-- From the first byte again; the file stays, as it is held.
local function empty(part)
  local f = io.open(part, "wb")
  if f then f:close() end
end

-- One try: appends to the part what comes. Returns nil when all is there; else why it broke off, and whether another
-- try makes no sense.
local function fetch(c, o, f, url, part)
  local have = f.sha256 and size_of(part) or 0
  if have > f.size then have = 0 end
  if have == f.size and f.size > 0 then return nil end
  local out, why, final, parts, status
  local how = c:run({ url = url, token = o.token, connect_s = 30, stall_s = o.stall_s, max_redirects = 10,
    headers = have > 0 and ("Range: bytes=%d-\n"):format(have) or nil }, function(v)
    if v.kind == "head" then
      status, parts = v.status, {}
      local length = tonumber(client.header(v.data, "content-length"))
      if status == 206 then
        local first, total = (client.header(v.data, "content-range") or ""):match "^bytes (%d+)%-%d+/(%d+)"
        if tonumber(first) ~= have or tonumber(total) ~= f.size then
          why, final = "another part than what was asked for", true
        end
      elseif status == 200 then
        have = 0
        if length and length ~= f.size then
          why, final = ("%d bytes in the answer, %d in the hub's list"):format(length, f.size), true
        end
      end
      if not why and (status == 200 or status == 206) then
        local problem
        out, problem = io.open(part, have > 0 and "ab" or "wb")
        if not out then why, final = problem, true end
      end
      return not why
    elseif v.kind == "end" then
      if v.status ~= 0 then why, final = v.data, hopeless[v.status] end
      return
    elseif not out then
      if #parts < 16 then parts[#parts + 1] = v.data end
      return
    end
    have = have + #v.data
    if have > f.size then
      why, final = ("more than the %d bytes of the hub's list"):format(f.size), true
      return false
    end
    local ok, problem = out:write(v.data)
    if not ok then
      why, final = problem, true
      return false
    end
    o.progress(f, have)
  end)
  if out then
    local ok, problem = out:close()
    if not ok and not why then why, final = problem or "cannot be written", true end
  end
  if how == "cancelled" then err.raise("interrupted; the next start goes on from here", nil, "ECANCEL") end
  if why then return why, final end
  if status == 416 then
    empty(part)
    return "the server does not have that part"
  end
  if not out then
    local text = client.problem(status or 0, table.concat(parts))
    if status == 401 or status == 403 then text = text .. " (wants a token that may read it: --token-file)" end
    return text, status ~= 429 and (status or 0) < 500 and status ~= 408
  end
  return have < f.size and ("%d of %d bytes"):format(have, f.size) or nil
end

-- Tries until the part is whole and right.
local function fetch_all(c, o, f, url, part)
  local tries, again = 0, false
  while true do
    local before = f.sha256 and size_of(part) or 0
    local why, final = fetch(c, o, f, url, part)
    if not why then
      local sum = f.sha256 and sha256(part)
      if sum == f.sha256 or not f.sha256 and size_of(part) == f.size then return end
      empty(part)
      -- what an earlier start left may be wrong: once more from the first byte
      if before == 0 or again then fail("%s: sha256 %s, want %s", f.path, sum or "unknown", f.sha256 or "unknown") end
      again = true
    else
      local more = (f.sha256 and size_of(part) or 0) > before
      tries = more and 1 or tries + 1
      if final or tries >= TRIES then fail("%s: %s", f.path, why) end
      o.say(("%s: %s; trying again"):format(f.path, why))
      pause(M.pause * 2 ^ (tries - 1))
    end
  end
end

-- Holds a part, so that no other pull writes to it; waits for one that does. Returns what gives it up, and whether it
-- waited.
local function hold(o, f, part)
  local fd, waited = abi.new "int32_t[1]", false
  while true do
    local rc = C.pl_host_hold(fd, part, e)
    if rc ~= C.PL_EBUSY then
      check(rc)
      return function() C.pl_host_let_go(fd[0]) end, waited
    end
    if not waited then o.say(f.path .. ": another pull is at work on it; waiting for that one, Ctrl-C leaves") end
    waited = true
    pause(0.2)
  end
end

-- Fetches one file; returns its path.
local function get(c, o, f, repo, commit, dir)
  local target = dir .. "/" .. f.path
  local function is_there() return size_of(target) == f.size and (not f.sha256 or sha256(target) == f.sha256) end
  if require("pl.file").is_directory(target) or C.pl_host_may_wait(target) then
    fail("%s: is there, and no regular file", target)
  end
  if is_there() then return target end
  local part = ("%s.%s.part"):format(target, f.sha256 and f.sha256:sub(1, 12) or "whole")
  local p = io.popen("mkdir -p " .. quoted(target:match "^(.*)/") .. " 2>&1")
  local problem = p:read "*a"
  p:close()
  if problem ~= "" then fail("%s", (problem:gsub("%s+$", ""))) end
  local url = ("%s/%s/resolve/%s/%s"):format(o.hub, repo, commit, (f.path:gsub("[^%w%-_./]", function(ch)
    return ("%%%02X"):format(ch:byte())
  end)))
  local let_go, waited = hold(o, f, part)
  local ok, why = pcall(function()
    if waited and is_there() then return end
    fetch_all(c, o, f, url, part)
    local done, cause = os.rename(part, target)
    if not done then fail("%s", cause) end
  end)
  if size_of(part) == 0 then os.remove(part) end
  let_go()
  if not ok then error(why, 0) end
  -- those of other revisions, that were not finished and that nobody is at work on
  os.execute(("for p in %s.%s.part; do [ ! -f \"$p\" ] || flock -n \"$p\" rm -f \"$p\"; done"):format(quoted(target),
    ("?"):rep(12)))
  return target
end

local function is_loopback(url)
  local host = url:match "^http://([^/:]+)"
  return host == "localhost" or host and host:find "^127%." ~= nil
end

--- Fetch a model. o: dir, hub, revision, token, stall_s, say(text), progress(file, bytes). Returns the path to load: of
--- a file, or of a directory.
function M.get(name, o)
  local repo, which = parse(name)
  o.hub = client.base(o.hub or M.hub)
  if o.token and o.hub:find "^http://" and not is_loopback(o.hub) then
    fail("%s: a token goes over https only", o.hub)
  end
  o.revision = o.revision or "main"
  if not o.revision:find "^[%w%-_.]+$" then fail("'%s' is no revision", o.revision) end
  local c = client.open()
  local list = list_of(c, o, repo)
  local files, whole = choose(list, repo, which)
  for _, f in ipairs(files) do
    if not M.is_safe(f.path) then fail("%s: '%s' is not the name of a file in it", repo, f.path) end
    if not f.size or f.size % 1 ~= 0 or f.size < 0 or f.size > MAX_FILE then
      fail("%s: %s has a size of %s", repo, f.path, tostring(f.size))
    end
  end
  local dir = (o.dir or M.cache()) .. "/" .. repo
  local first
  for _, f in ipairs(files) do
    local path = get(c, o, f, repo, list.commit, dir)
    first = first or path
  end
  c:close()
  return whole and dir or first
end

--- A demo model by its short name, as tools/model.sh fetches it: its exit code.
function M.get_demo(name)
  local code = os.execute(("bash -c %s model.sh %s"):format(quoted(require "pl.demo.text"), quoted(name)))
  return code == true and 0 or type(code) == "number" and math.floor(code / 256) or 1
end

return M
