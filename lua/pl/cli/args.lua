-- What was typed behind a verb. argparse has the options, their help and their conversion; what was typed is looked at
-- here first, so that every mistake names its option and says what it wants, and a value may begin with "-".
local err = require "pl.err"
local M = {}

local may_be_empty = { ["--prompt"] = true, ["--system"] = true, ["--ids"] = true, ["--eval"] = true }

local function short(s)
  local shown = err.printable(s)
  return #shown > 60 and shown:sub(1, 57):gsub("[\128-\255]+$", "") .. "..." or shown
end

--- A text that was typed, for a message.
function M.show(s) return "'" .. short(s) .. "'" end

local function name_of(element)
  local name = element._aliases and element._aliases[#element._aliases] or element._name
  return name:find "^%-" and name or name:upper()
end

local function fail(what, ...) error({ wrong = what:format(...) }, 0) end

-- Conversions that name their option; choices are one.
local function named(element)
  local name, choices, convert = name_of(element), element._choices, element._convert
  if choices then element._argname, element._choices = "{" .. table.concat(choices, ",") .. "}", nil end
  if not choices and not convert then return end
  element._convert = function(s)
    local v, why, part
    if convert then
      v, why, part = convert(s)
    else
      for _, c in ipairs(choices) do if c == s then v = s end end
      why = "want one of " .. table.concat(choices, " ")
    end
    if v == nil then return nil, ("%s: %s, %s"):format(name, M.show(part or s), why) end
    return v
  end
end

local function prepare(p)
  for _, o in ipairs(p._options) do named(o) end
  for _, c in ipairs(p._commands) do prepare(c) end
  p._handle_options = true
end

--- The parser of a verb: { name, about, options(p) }.
function M.parser(verb)
  local p = require "argparse"("perilune " .. verb.name, verb.about)
  verb.options(p)
  prepare(p)
  return p
end

-- "a GGUF file ..." of an argument's description.
local function wanted(argument)
  local text = (argument._description or ""):match "^(.-)%.?$"
  return (text:gsub("^%u%f[^%w]", string.lower))
end

local function names_of(list, field)
  local out = {}
  for _, x in ipairs(list) do out[#out + 1] = x[field] end
  return out
end

local function options_of(p)
  local known, names = {}, {}
  for _, o in ipairs(p._options) do
    for _, alias in ipairs(o._aliases) do known[alias], names[#names + 1] = o, alias end
  end
  return known, names
end

local function command_of(p, word)
  for _, c in ipairs(p._commands) do if c._name == word then return c end end
  local all = names_of(p._commands, "_name")
  local near = err.closest(word, all)
  fail("%s, %s", M.show(word), near and ("did you mean '%s'?"):format(near) or "want one of " .. table.concat(all, " "))
end

-- How many arguments there are, against how many the parser takes.
local function counted(p, plain)
  local least, most, names = 0, 0, {}
  for _, a in ipairs(p._arguments) do
    if #plain < least + a._minargs then fail("%s: nothing given, want %s", name_of(a), wanted(a)) end
    least, most, names[#names + 1] = least + a._minargs, most + a._maxargs, name_of(a)
  end
  if #plain > most then
    fail("%s: one argument too many, want %s", M.show(plain[most + 1]),
      #names > 0 and table.concat(names, " ") .. " alone" or "options only")
  end
end

-- The one that begins so, or else the nearest; of a short name only one with the same first letter.
local function near_option(written, names)
  local bare, all, begins = written:gsub("^%-+", ""), {}, {}
  for _, n in ipairs(names) do
    local name = n:match "^%-%-(.+)$"
    if name then all[#all + 1] = name end
    if name and name:sub(1, #bare) == bare then begins[#begins + 1] = name end
  end
  local near = #begins == 1 and begins[1] or err.closest(bare, all)
  if near and #bare < 5 and near:byte() ~= bare:byte() then near = nil end
  return near and "--" .. near
end

-- The option that a word is, in long form, and the value that is in the same word.
local function split(known, word)
  if known[word] then return known[word] end
  local name, value = word:match "^(%-%-[^=]+)=(.*)$"
  if not known[name] then name, value = word:match "^(%-%a)(.+)$" end
  local o = known[name]
  if o and (o._maxargs > 0 or name:sub(2, 2) == "-") then return o, value end
end

local function value_of(o, known, word, next_word)
  local name, want = name_of(o), o._argname or "a value"
  if not next_word then fail("%s: no value, want %s", name, want) end
  if known[next_word] or next_word:find "^%-%-%a" or next_word == "--" then
    fail("%s: no value, want %s (%s=%s if that is it)", word, want, name, next_word)
  end
  return next_word
end

-- The words in the form that argparse takes for what they are: an option's value in one word with it. Raises
-- { wrong = message }.
local function heed(p, words)
  local known, names = options_of(p)
  local out, plain, given, open, i = {}, {}, {}, true, 1
  while i <= #words do
    local word = words[i]
    if open and word == "--" then
      open, out[#out + 1] = false, word
    elseif not open or not word:find "^%-." then
      if #p._commands > 0 then
        p = command_of(p, word)
        known, names = options_of(p)
      else
        if word == "" then fail("%s: an empty text", name_of(p._arguments[1] or { _name = "argument" })) end
        plain[#plain + 1] = word
      end
      out[#out + 1] = word
    else
      local o, value = split(known, word)
      if not o then
        local written = word:match "^(%-%-[^=]+)=" or word
        local near = near_option(written, names)
        fail("%s: no such option%s", short(written), near and (", did you mean '%s'?"):format(near) or "")
      end
      local name = name_of(o)
      if given[o] then fail("%s: given twice, want it once", name) end
      given[o] = true
      if o._maxargs == 0 then
        if value then fail("%s: %s, want it without a value", name, M.show(value)) end
        out[#out + 1] = name
      else
        if not value then
          i = i + 1
          value = value_of(o, known, word, words[i])
        end
        if value == "" and not o._convert and not may_be_empty[name] then
          fail("%s: an empty text, want %s", name, o._argname or "a value")
        end
        out[#out + 1] = name .. "=" .. value
      end
    end
    i = i + 1
  end
  if #p._commands > 0 then fail("nothing given, want one of %s", table.concat(names_of(p._commands, "_name"), " ")) end
  counted(p, plain)
  return out
end

-- The parser whose help is asked for, or nil.
local function help_of(p, words)
  local asked = false
  for _, word in ipairs(words) do
    if word == "--" then break end
    asked = asked or word == "-h" or word == "--help"
  end
  for _, word in ipairs(asked and words or {}) do
    for _, c in ipairs(p._commands) do if c._name == word then return c end end
  end
  return asked and p or nil
end

--- What was typed behind a verb: the options' values; or nil and the help that is asked for; or nil, nil and what is
--- wrong. The last result: how the verb is called, with the command among its words.
function M.read(verb, words)
  local p, called = M.parser(verb), verb.name
  for _, c in ipairs(p._commands) do if c._name == words[1] then called = called .. " " .. words[1] end end
  local shown = help_of(p, words)
  if shown then return nil, shown:get_help(), nil, called end
  local ok, list = pcall(heed, p, words)
  if not ok then
    if type(list) ~= "table" then error(list, 0) end
    return nil, nil, list.wrong, called
  end
  local fine, o = p:pparse(list)
  return fine and o or nil, nil, not fine and tostring(o) or nil, called
end

return M
