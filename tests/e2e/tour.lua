-- docs/tour.md, done again: its files are written, its commands run one after the other in one shell, and what each
-- prints is compared with what the document shows. Numbers may differ, unless the block is under <!-- exact -->; "..."
-- is anything, as a line of its own any number of lines. The port is another one. `pl-lua tests/e2e/tour.lua show`
-- prints what came out.
dofile "tests/http_client.lua" -- its declarations
local ffi = require "ffi"
if (os.getenv "PL_SANITIZED" or "") ~= "" then
  print "0 passed, 0 failed (the tour is about the program as it is built for use)"
  os.exit(0)
end
ffi.cdef "int bind(int, const void *, unsigned); int getsockname(int, void *, unsigned *); uint16_t ntohs(uint16_t);"

local function read(path)
  local f = assert(io.open(path, "rb"))
  local s = f:read "*a"
  f:close()
  return s
end

-- a port that is free now
local fd = ffi.C.socket(2, 1, 0)
local address = ffi.new("struct test_in", { family = 2, address = ffi.C.htonl(0x7f000001) })
local length = ffi.new("unsigned[1]", 16)
assert(ffi.C.bind(fd, address, 16) == 0 and ffi.C.getsockname(fd, address, length) == 0)
local port = tostring(ffi.C.ntohs(address.port))
ffi.C.close(fd)

-- The document: files, and commands with what they print.
local files, commands = {}, {}
do
  local n, block, exact = 0, nil, false
  for line in read "docs/tour.md":gsub("8080", port):gmatch "([^\n]*)\n" do
    n = n + 1
    if not block and line:find "^```" then
      local kind, path = line:match "^```(%w*)%s*(%S*)$"
      block = { kind = kind, lines = {}, exact = exact }
      if path and path ~= "" then files[#files + 1], block.file = block, path end
    elseif line:find "^```" then
      block = nil
    elseif not block then
      exact = line == "<!-- exact -->"
    elseif block.kind == "console" then
      local command, more = line:match "^%$ (.*)$", line:match "^> (.*)$"
      local last = commands[#commands]
      if command then
        commands[#commands + 1] = { text = command, line = n, want = {}, exact = block.exact, files = #files }
      elseif more and #last.want == 0 then
        last.text = last.text .. "\n" .. more
      else
        last.want[#last.want + 1] = line
      end
    else
      block.lines[#block.lines + 1] = line
    end
  end
end

-- One script: files are there before the command that follows them in the document.
local MARK = "@@@ tour "
local root = io.popen("pwd"):read "*l"
local build = os.getenv "PL_BUILD" or "build"
if build:sub(1, 1) ~= "/" then build = root .. "/" .. build end
local dir = os.tmpname()
os.remove(dir)
local script = { ("mkdir %s && cd %s || exit 1"):format(dir, dir), ("ln -s '%s' build"):format(build),
  ("ln -s '%s/recipes' recipes; ln -s '%s/tools' tools"):format(root, root), "unset XDG_RUNTIME_DIR MODEL",
  "trap 'kill $(jobs -p) 2>/dev/null; wait' EXIT", "exec 2>&1 </dev/null" }
local written = 0
for i, c in ipairs(commands) do
  while written < c.files do
    written = written + 1
    local f = files[written]
    script[#script + 1] = ("mkdir -p $(dirname %s); cat >%s <<'END OF FILE'\n%s\nEND OF FILE"):format(f.file, f.file,
      table.concat(f.lines, "\n"))
  end
  script[#script + 1] = ("printf '\\n%s%d\\n'"):format(MARK, i)
  script[#script + 1] = c.text
end
local path = os.tmpname()
local f = assert(io.open(path, "w"))
f:write(table.concat(script, "\n"), "\n")
f:close()
local p = io.popen("timeout 100 bash " .. path)
local out = p:read "*a"
p:close()
os.remove(path)
os.execute("rm -r " .. dir)
if arg[1] == "show" then print((out:gsub(port, "8080"))) end

local function pattern(line, exact)
  local s = line:gsub("%s+", " "):gsub(" $", ""):gsub("%.%.%.", "\1")
  if not exact then s = s:gsub("%d[%d.]*", "\2") end
  s = s:gsub("[%^%$%(%)%%%.%[%]%*%+%-%?]", "%%%0"):gsub("\1", ".*"):gsub("\2", "%%d[%%d.]*")
  return "^" .. s .. "$"
end
local function matches(want, got, i, k, exact)
  if i > #want then return k > #got end
  if want[i] == "..." then
    for next = k, #got + 1 do if matches(want, got, i + 1, next, exact) then return true end end
    return false
  end
  return got[k] ~= nil and got[k]:gsub("%s+", " "):gsub(" $", ""):find(pattern(want[i], exact)) ~= nil
    and matches(want, got, i + 1, k + 1, exact)
end

local passed, failed = 0, 0
for i, c in ipairs(commands) do
  local _, from = out:find(("\n%s%d\n"):format(MARK, i), 1, true)
  local to = out:find(("\n%s%d\n"):format(MARK, i + 1), 1, true) or #out + 1
  local got = {}
  for line in (from and out:sub(from + 1, to - 1) or "the script did not come so far"):gmatch "[^\n]*" do
    if line ~= "" then got[#got + 1] = line end
  end
  local want = {}
  for _, line in ipairs(c.want) do if line ~= "" then want[#want + 1] = line end end
  if matches(want, got, 1, 1, c.exact) then
    passed = passed + 1
  else
    failed = failed + 1
    print(("FAIL docs/tour.md:%d: %s\n  printed:\n    %s\n  want:\n    %s"):format(c.line, c.text,
      table.concat(got, "\n    "), table.concat(want, "\n    ")))
  end
end
assert(#commands > 30)
print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
