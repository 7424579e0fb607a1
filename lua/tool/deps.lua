-- deps.lua: checks who may include or require whom (core/README.md, "Layers"). Reads the files that git tracks.
local order = { "pl", "pl_serve", "pl_ops", "base", "mem", "newfile", "metrics", "prof", "quant", "dtype", "tensor",
  "sig", "dev", "plugin", "json",
  "toc", "meta", "config",
  "gguf", "safetensors", "scheme", "parts", "packed", "tok", "ckpt",
  "coll", "mail", "fault", "tag", "kv", "digest", "prefix", "tier", "prog", "sample", "engine", "sched",
  "embedding", "http",
  "client", "socket" }
local rank = {}
for i, n in ipairs(order) do rank[n] = i end

local n_files, bad = 0, {}
local function complain(file, line, fmt, ...)
  bad[#bad + 1] = ("%s:%d: %s"):format(file, line, fmt:format(...))
end

local function each_line(path, f)
  local n = 0
  for line in io.lines(path) do
    n = n + 1
    f(line, n)
  end
end

local function stem(path) return path:match "([%w_]+)%.[%w]+$" end
-- tok_bpe, tok_json... stand where tok does; a file may include headers of its own family
local function place(name) return rank[name] or rank[(name:match "^(%a+)_")] end

local generated = { ops_backend = true }
local host_only = { host = true, lua_host = true, main = true }
local for_kernels = { pl = true, pl_ops = true, base = true, dev = true, coll = true, tensor = true, dtype = true,
  kv = true,
  quant = true, mem = true, ops_backend = true }

local function check_core(path)
  local me = stem(path)
  each_line(path, function(line, n)
    local header = line:match '^%s*#%s*include%s+"([^"]+)"'
    if line:match "[<\"]lua[%w]*%.h[>\"]" and me ~= "lua_host" then complain(path, n,
      "only lua_host.c may include lua.h") end
    if line:match '#%s*include%s+[<"]cuda' then complain(path, n, "no CUDA header in core") end
    if not header then return end
    if header:match "/" then complain(path, n, "core includes nothing outside core") return end
    local other = stem(header)
    if generated[other] or host_only[me] then return end
    if not place(other) then complain(path, n, "%s is not in the order of lua/tool/deps.lua", header) return end
    if not place(me) then complain(path, n, "%s is not in the order of lua/tool/deps.lua", path) return end
    if path:match "%.h$" and place(other) > place(me) then complain(path, n, "%s.h comes before %s in the order", me,
      header) end
  end)
end

local function check_kernels(path)
  each_line(path, function(line, n)
    local header = line:match '^%s*#%s*include%s+"([^"]+)"'
    if line:match '#%s*include%s+[<"]cuda' and not path:match "^kernels/cuda/" and not path:match "^kernels/simt/" then
      complain(path, n, "CUDA headers belong under kernels/cuda")
    end
    if header and rank[stem(header)] and not for_kernels[stem(header)] then
      complain(path, n, "kernels do not include %s of core", header)
    end
  end)
end

local function check_lua(path)
  each_line(path, function(line, n)
    for name in line:gmatch 'require%s*%(?%s*"([^"]+)"' do
      if path:match "^recipes/" and name ~= "pl" and name ~= "pl.nn" then complain(path, n,
        "a recipe requires only pl and pl.nn") end
      if name == "ffi" and path:match "^lua/pl/" and path ~= "lua/pl/abi.lua" then
        complain(path, n, "lua/pl reaches C through pl.abi alone")
      end
    end
  end)
end

for path in io.popen("git ls-files"):lines() do
  local f = io.open(path)
  if f then
    f:close()
    n_files = n_files + 1
    if path:match "^core/.*%.[ch]$" then check_core(path)
    elseif path:match "^kernels/.*%.[ch]u?h?$" then check_kernels(path)
    elseif path:match "^lua/pl/.*%.lua$" or path:match "^recipes/.*%.lua$" then check_lua(path) end
  end
end
for _, b in ipairs(bad) do print(b) end
print(("deps: %d files, %d complaints"):format(n_files, #bad))
os.exit(#bad == 0 and 0 or 1)
