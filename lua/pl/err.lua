-- Errors that a recipe author or a user sees: where in the recipe, the line's text, what was wanted and what
-- was there. At most eight lines, and the same text every time (golden tests hold it).
local getinfo, sethook, gethook = debug.getinfo, debug.sethook, debug.gethook
local find, sub, format, match = string.find, string.sub, string.format, string.match
local pcall, tostring, type = pcall, tostring, type
local M = {}

-- Our own files: everything in the folder of this one. Frames outside it belong to the author.
local lib = match(getinfo(1, "S").source, "^(.*)err%.lua$") or "@lua/pl/"
local main = sub(lib, 1, -2) .. ".lua" -- pl/init.lua, as the program names it
local function ours(source) return sub(source, 1, #lib) == lib or source == main end

local sources = {} -- texts of the recipes that were loaded, and of what loads them, by the name they go under
local loaders = {} -- of these, scripts and lines of a REPL: while a recipe runs, their frames are not its author's

--- Remember a text, so that errors can show its lines. loads: it is no recipe, but may load one.
function M.register(name, text, loads) sources[name], loaders[name] = text, loads end

--- Line n of a registered text, or nil; at most 200 bytes of it.
function M.text_of(name, n)
  local text, from = sources[name], 1
  if not text then return nil end
  for _ = 2, n do
    local _, e = find(text, "\n", from, true)
    if not e then return nil end
    from = e + 1
  end
  local stop = find(text, "\n", from, true)
  return sub(text, from, math.min((stop or #text + 1) - 1, from + 199))
end

-- Lua drops the frame of `return f(x)`, so a walk of the stack alone would blame the caller's line. While a
-- recipe runs, a line hook remembers the last line entered in the author's code; when one of our functions
-- returns into the author's code, that is the place again.
local last
local author = setmetatable({}, { __mode = "k" }) -- function -> file name, or false: ours, or C
local function author_of(level)
  local i = getinfo(level + 1, "f")
  local f = i and i.func
  if not f then return nil, false end
  local file = author[f]
  if file == nil then
    i = getinfo(level + 1, "S")
    file = i.what ~= "C" and not ours(i.source) and sub(i.source, 2)
    author[f] = file
  end
  return f, file
end

local function note(event, line)
  local f, file = author_of(4) -- 1: this function, 2: pcall, 3: the hook
  if event == "line" then
    if file then last = { func = f, file = file, line = line } end
  elseif file then
    if last and last.func == f then last = nil end
  elseif last then
    local caller, at = author_of(5)
    if at and caller ~= last.func then last = nil end
  end
end

--- Follow the author's lines, and call tick() every `count` instructions. Returns a function that stops it.
function M.watch(tick, count)
  local f, mask, n = gethook()
  local was = last
  last = nil
  sethook(function(event, line)
    -- pcall: LuaJIT loses a memory error that leaves a hook, but not one that is raised again. That a line
    -- could not be noted for want of memory is no error: the author's own next allocation is.
    if event ~= "count" then
      pcall(note, event, line)
    else
      local ok, e = pcall(tick)
      if not ok then error(e, 0) end
    end
  end, "lr", count)
  return function()
    last = was
    if f then sethook(f, mask, n) else sethook() end
  end
end

-- The recipe that is running, if any: the frames below its call belong to whoever loads it.
local running
--- Called when a recipe's code is entered; returns a function to be called when it is left.
function M.enter(name)
  local was = running
  running = name
  return function() running = was end
end

--- The line the author wrote: the first stack frame outside lua/pl, or the tail call that left it.
function M.where()
  for level = 2, 80 do
    local i = getinfo(level, "Slf")
    local name = i and i.what ~= "C" and not ours(i.source) and sub(i.source, 2)
    if running and (not i or name and (not sources[name] or loaders[name])) then
      if last then return last.file, last.line end
      return running
    end
    if not i then return nil end
    if i.what ~= "C" and i.currentline > 0 and not ours(i.source) then
      if last and last.func ~= i.func then return last.file, last.line end
      return match(i.source, "^[@=]?(.*)"), i.currentline
    end
  end
end

--- The last line that was entered in the author's code, for errors that leave no stack.
function M.place()
  if last then return last.file, last.line end
  return running
end

local function escaped(s) return (string.gsub(s, ".", function(c) return format("\\%d", string.byte(c)) end)) end
--- A text without what a terminal would act on: control characters but tab and newline, of one byte or of two, become
--- "\\27", "\\194\\155".
function M.printable(s)
  return (string.gsub(string.gsub(s, "[%z\1-\8\11-\31\127]", escaped), "\194[\128-\159]", escaped))
end

local methods = {}
local mt = { __index = methods, __metatable = false }
function mt.__tostring(e)
  local out = {}
  out[1] = (e.file and e.file .. ":" or "") .. (e.line and e.line .. ":" or "") .. (e.file and " " or "")
    .. e.msg
  if e.text then out[2] = format("  %4d | %s", e.line, e.text) end
  for _, n in ipairs(e.notes) do
    if #out == 8 then break end
    out[#out + 1] = "         " .. n
  end
  return M.printable(table.concat(out, "\n"))
end

--- An error object; tostring gives the whole report.
---   msg: what: value, want value    notes: lines below it    code: the C code, if C said so
function M.new(msg, notes, file, line, code)
  return setmetatable({ msg = msg, notes = notes or {}, file = file, line = line, code = code,
    text = file and line and M.text_of(file, line) }, mt)
end

function M.is(e) return debug.getmetatable(e) == mt end

--- What was thrown, as a text, whatever it is: its own __tostring may fail.
function M.text(e)
  local ok, s = pcall(tostring, e)
  return ok and type(s) == "string" and s or format("error object is a %s, which cannot be shown", type(e))
end

--- What a sandbox threw, as an error object of texts and numbers only: a recipe can write in one it caught.
function M.clean(e)
  if not M.is(e) then return M.new(type(e) == "string" and e or "error object is a " .. type(e)) end
  local function only(kind, v) return type(v) == kind and v or nil end
  local c = setmetatable({ msg = only("string", e.msg) or "error", file = only("string", e.file),
    line = only("number", e.line), code = only("string", e.code), text = only("string", e.text),
    notes = {} }, mt)
  local notes = only("table", e.notes) or {}
  for i = 1, 8 do c.notes[i] = only("string", rawget(notes, i)) end
  return c
end

--- Raise an error at the author's line.
function M.raise(msg, notes, code)
  local file, line = M.where()
  error(M.new(msg, notes, file, line, code), 0)
end

--- Raise an error at a place known from before: a function, or { file =, line = }.
function M.raise_at(place, msg, notes)
  if type(place) == "function" then
    local i = getinfo(place, "S")
    place = { file = match(i.source, "^[@=]?(.*)"), line = i.linedefined }
  end
  error(M.new(msg, notes, place.file, place.line), 0)
end

--- Turn what was thrown into an error object. To be used as the handler of xpcall, while the stack still
--- stands.
function M.from(e)
  if M.is(e) then return e end
  if type(e) ~= "string" then return M.new(format("error object is a %s", type(e)), nil, M.where()) end
  local file, line, msg = match(e, "^(..-):(%d+): (.*)$")
  if file and sources[file] then return M.new(msg, nil, file, tonumber(line)) end
  local at, n = M.where()
  if at and sources[at] then
    return M.new(msg or e, file and { "raised in " .. file .. ":" .. line } or nil, at, n)
  end
  return M.new(e)
end

-- Edits between two short words.
local function distance(a, b)
  local prev = {}
  for j = 0, #b do prev[j] = j end
  for i = 1, #a do
    local row = { [0] = i }
    for j = 1, #b do
      local change = a:byte(i) == b:byte(j) and 0 or 1
      row[j] = math.min(prev[j] + 1, row[j - 1] + 1, prev[j - 1] + change)
    end
    prev = row
  end
  return prev[#b]
end

--- The nearest of `names` to `s`, or nil if none is near.
function M.closest(s, names)
  local best, least = nil, math.max(2, math.floor(#s / 3)) + 1
  if #s > 100 then return nil end
  for _, n in ipairs(names) do
    if math.abs(#n - #s) < least then
      local d = distance(s, n)
      if d < least then best, least = n, d end
    end
  end
  return best
end

--- "known: a b c ...", cut to one line.
function M.known(names)
  local line = "known: " .. table.concat(names, " ")
  return #line > 100 and sub(line, 1, 97):gsub("%s%S*$", "") .. " ..." or line
end

--- Raise that `what` has no such key, with the nearest known name.
function M.unknown(what, key, names)
  table.sort(names)
  local near = M.closest(tostring(key), names)
  M.raise(format("%s has no '%s'", what, tostring(key)) .. (near and format(", did you mean '%s'?", near)
    or ""),
    -- a long list helps only where nothing is near
    (#names > 12 and near or #names == 0) and {} or { M.known(names) })
end

--- Names that are string keys of t.
function M.names(t)
  local n = {}
  for k in pairs(t) do if type(k) == "string" then n[#n + 1] = k end end
  return n
end

return M
