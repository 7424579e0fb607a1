-- The parser of expressions: tokens to a tree, by the rules of Jinja 3.1. A node: { t, line, ... }.
local base, lex = require "pl.jinja.base", require "pl.jinja.lex"
local M = {}
local P = {}
P.__index = P
M.P = P
local DEEP = 200   -- nested expressions and blocks
local CHAIN = 1000 -- operators, filters and subscripts in a row

function M.new(tokens)
  return setmetatable({ tokens = tokens, i = 1, cur = tokens[1], depth = 0, used = {} }, P)
end

function P:next()
  local t = self.cur
  if t.t ~= "end" then
    self.i = self.i + 1
    self.cur = self.tokens[self.i]
  end
  return t
end
function P:look() return self.tokens[self.i + 1] or self.cur end

local words = { data = "template data", var_begin = "begin of print statement", var_end = "end of print statement",
  block_begin = "begin of statement block", block_end = "end of statement block", string = "string", int = "integer",
  float = "float", name = "name" }
local function shown(t)
  if t.t == "end" then return "end of template" end
  return t.t == "op" and "'" .. t.v .. "'" or t.t == "name" and "'" .. t.v .. "'" or words[t.t]
end
function P:fail(fmt, ...) lex.syntax(self.cur.line, fmt, ...) end
function P:is(t, v) return self.cur.t == t and (v == nil or self.cur.v == v) end
function P:op(v) return self.cur.t == "op" and self.cur.v == v end
function P:skip(t, v)
  if self:is(t, v) then return self:next() end
end
function P:expect(t, v)
  if not self:is(t, v) then
    local want = "'" .. (v or words[t] or t) .. "'"
    if self.cur.t == "end" then self:fail("unexpected end of template, expected %s.", want) end
    self:fail("expected token %s, got %s", want, shown(self.cur))
  end
  return self:next()
end
function P:enter()
  self.depth = self.depth + 1
  if self.depth > DEEP then self:fail("more than %d deep", DEEP) end
end
function P:leave() self.depth = self.depth - 1 end

local function node(t, line, n)
  n.t, n.line = t, line
  return n
end
M.node = node

-- A left-associative row of operators.
local function row(self, ops, operand)
  local line = self.cur.line
  local left, n = operand(self), 0
  while self.cur.t == "op" and ops[self.cur.v] do
    n = n + 1
    if n > CHAIN then self:fail("more than %d operators in a row", CHAIN) end
    local op = ops[self:next().v]
    left = node("Bin", line, { op = op, left, operand(self) })
    line = self.cur.line
  end
  return left
end

function P:expression(no_condition)
  if no_condition then return self:disjunction() end
  self:enter()
  local line = self.cur.line
  local e, n = self:disjunction(), 0
  while self:skip("name", "if") do
    n = n + 1
    if n > CHAIN then self:fail("more than %d conditions in a row", CHAIN) end
    local test, other = self:disjunction(), nil
    if self:skip("name", "else") then other = self:expression() end
    e = node("Cond", line, { test = test, e, other })
    line = self.cur.line
  end
  self:leave()
  return e
end

local function words_row(word, kind, operand)
  return function(self)
    local line = self.cur.line
    local left, n = self[operand](self), 0
    while self:skip("name", word) do
      n = n + 1
      if n > CHAIN then self:fail("more than %d operators in a row", CHAIN) end
      left = node(kind, line, { left, self[operand](self) })
      line = self.cur.line
    end
    return left
  end
end
P.disjunction = words_row("or", "Or", "conjunction")
P.conjunction = words_row("and", "And", "negation")

function P:negation()
  if self:is("name", "not") then
    self:enter()
    local line = self:next().line
    local n = node("Not", line, { self:negation() })
    self:leave()
    return n
  end
  return self:comparison()
end

local comparisons = { ["=="] = "eq", ["!="] = "ne", ["<"] = "lt", ["<="] = "le", [">"] = "gt", [">="] = "ge" }
function P:comparison()
  local line = self.cur.line
  local e, ops = self:sum(), {}
  while true do
    local op
    if self.cur.t == "op" and comparisons[self.cur.v] then
      op = comparisons[self:next().v]
    elseif self:skip("name", "in") then
      op = "in"
    elseif self:is("name", "not") and self:look().t == "name" and self:look().v == "in" then
      self:next()
      self:next()
      op = "notin"
    else
      break
    end
    if #ops > CHAIN then self:fail("more than %d operators in a row", CHAIN) end
    ops[#ops + 1] = { op = op, e = self:sum() }
  end
  if #ops == 0 then return e end
  return node("Compare", line, { e, ops = ops })
end

function P:sum() return row(self, { ["+"] = "add", ["-"] = "sub" }, P.concat) end
function P:concat()
  local line = self.cur.line
  local parts = { self:product() }
  while self:skip("op", "~") do parts[#parts + 1] = self:product() end
  if #parts == 1 then return parts[1] end
  return node("Concat", line, { parts = parts })
end
function P:product()
  return row(self, { ["*"] = "mul", ["/"] = "div", ["//"] = "floordiv", ["%"] = "mod" }, P.power)
end
function P:power() return row(self, { ["**"] = "pow" }, P.unary) end

function P:unary(no_filter)
  self:enter()
  local line = self.cur.line
  local e
  if self:skip("op", "-") then
    e = node("Neg", line, { self:unary(true) })
  elseif self:skip("op", "+") then
    e = node("Pos", line, { self:unary(true) })
  else
    e = self:postfix(self:primary())
  end
  -- parse_postfix stands behind the sign too, where it finds nothing more
  e = self:postfix(e)
  if not no_filter then e = self:filters(e) end
  self:leave()
  return e
end

local constants = { ["true"] = true, ["True"] = true, ["false"] = false, ["False"] = false, none = base.none,
  None = base.none }

function P:primary(namespace)
  local t = self.cur
  if t.t == "name" then
    self:next()
    if constants[t.v] ~= nil then return node("Const", t.line, { v = constants[t.v] }) end
    if namespace and self:skip("op", ".") then
      return node("NsRef", t.line, { name = t.v, attr = self:expect("name").v })
    end
    self.used[t.v] = (self.used[t.v] or 0) + 1
    return node("Name", t.line, { name = t.v })
  elseif t.t == "string" then
    local parts = {}
    while self.cur.t == "string" do parts[#parts + 1] = self:next().v end
    return node("Const", t.line, { v = table.concat(parts) })
  elseif t.t == "int" or t.t == "float" then
    self:next()
    return node("Const", t.line, { v = t.v })
  elseif self:op "(" then
    self:next()
    local e = self:tuple { explicit = true }
    self:expect("op", ")")
    return e
  elseif self:op "[" then
    self:next()
    local items = {}
    while not self:op "]" do
      if #items > 0 then self:expect("op", ",") end
      if self:op "]" then break end
      items[#items + 1] = self:expression()
    end
    self:expect("op", "]")
    return node("List", t.line, { items = items })
  elseif self:op "{" then
    self:next()
    local items = {}
    while not self:op "}" do
      if #items > 0 then self:expect("op", ",") end
      if self:op "}" then break end
      local k = self:expression()
      self:expect("op", ":")
      items[#items + 1] = { k, self:expression() }
    end
    self:expect("op", "}")
    return node("Dict", t.line, { items = items })
  end
  self:fail("unexpected %s", shown(t))
end

local function ends_tuple(self, extra)
  local t = self.cur
  return t.t == "var_end" or t.t == "block_end" or self:op ")" or extra and t.t == "name" and extra[t.v]
end

--- One expression, or a tuple of some. o: simple (names and their parts only), no_condition, extra (words that end
--- it), explicit (in parentheses: may be empty), namespace (a.b is an attribute to be set).
function P:tuple(o)
  o = o or {}
  local line, items, is_tuple = self.cur.line, {}, false
  while true do
    if #items > 0 then self:expect("op", ",") end
    if ends_tuple(self, o.extra) then break end
    items[#items + 1] = o.simple and self:primary(o.namespace) or self:expression(o.no_condition)
    if not self:op "," then break end
    is_tuple = true
    line = self.cur.line
  end
  if not is_tuple then
    if #items > 0 then return items[1] end
    if not o.explicit then
      self:fail("Expected an expression, got %s", shown(self.cur))
    end
  end
  return node("Tuple", line, { items = items })
end

function P:postfix(e)
  local n = 0
  while self.cur.t == "op" do
    n = n + 1
    if n > CHAIN then self:fail("more than %d parts in a row", CHAIN) end
    local line = self.cur.line
    if self:skip("op", ".") then
      local t = self:next()
      if t.t == "name" then
        e = node("Attr", line, { e, name = t.v })
      elseif t.t == "int" then
        e = node("Item", line, { e, node("Const", line, { v = t.v }) })
      else
        lex.syntax(t.line, "expected name or number")
      end
    elseif self:skip("op", "[") then
      local keys = {}
      while not self:op "]" do
        if #keys > 0 then self:expect("op", ",") end
        keys[#keys + 1] = self:subscript()
      end
      self:expect("op", "]")
      if #keys == 0 then self:fail("a subscript without a key") end
      e = node("Item", line, { e, #keys == 1 and keys[1] or node("Tuple", line, { items = keys }) })
    elseif self:op "(" then
      e = self:call(e)
    else
      break
    end
  end
  return e
end

function P:subscript()
  local line = self.cur.line
  local parts = {}
  if self:op ":" then
    self:next()
    parts[1] = false
  else
    local e = self:expression()
    if not self:op ":" then return e end
    self:next()
    parts[1] = e
  end
  if self:op ":" then parts[2] = false
  elseif self:op "]" or self:op "," then parts[2] = false
  else parts[2] = self:expression() end
  if self:skip("op", ":") then
    parts[3] = not (self:op "]" or self:op ",") and self:expression() or false
  end
  return node("Slice", line, { from = parts[1], to = parts[2], by = parts[3] })
end

--- The arguments of a call: { line, args, names = { { name, e } }, star, star2 }.
function P:arguments()
  local line = self:expect("op", "(").line
  local a = { line = line, args = {}, names = {} }
  local comma = false
  local function check(ok) if not ok then self:fail "invalid syntax for function call expression" end end
  while not self:op ")" do
    if comma then
      self:expect("op", ",")
      if self:op ")" then break end
    end
    if self:op "*" then
      self:next()
      check(not a.star and not a.star2)
      a.star = self:expression()
    elseif self:op "**" then
      self:next()
      check(not a.star2)
      a.star2 = self:expression()
    elseif self.cur.t == "name" and self:look().t == "op" and self:look().v == "=" then
      check(not a.star2)
      local name = self:next().v
      self:next()
      for _, given in ipairs(a.names) do
        if given[1] == name then self:fail("keyword argument repeated: %s", name) end
      end
      a.names[#a.names + 1] = { name, self:expression() }
    else
      check(not a.star and not a.star2 and #a.names == 0)
      a.args[#a.args + 1] = self:expression()
    end
    comma = true
  end
  self:expect("op", ")")
  return a
end

function P:call(e)
  local a = self:arguments()
  return node("Call", a.line, { e, a = a })
end

local none_given = { args = {}, names = {} }
local function dotted(self)
  local name = self:expect("name").v
  while self:skip("op", ".") do name = name .. "." .. self:expect("name").v end
  return name
end

function P:filter(e, inline)
  local n = 0
  while self:op "|" or inline do
    n = n + 1
    if n > CHAIN then self:fail("more than %d filters in a row", CHAIN) end
    if not inline then self:next() end
    local line = self.cur.line
    local name = dotted(self)
    e = node("Filter", line, { e, name = name, a = self:op "(" and self:arguments() or none_given })
    inline = false
  end
  return e
end

local starts = { name = true, string = true, int = true, float = true }
function P:test(e)
  local line = self:next().line
  local negated = self:skip("name", "not")
  local name = dotted(self)
  local a = none_given
  if self:op "(" then
    a = self:arguments()
  elseif starts[self.cur.t] or self:op "(" or self:op "[" or self:op "{" then
    local word = self.cur.t == "name" and self.cur.v
    if word ~= "else" and word ~= "or" and word ~= "and" then
      if word == "is" then self:fail "You cannot chain multiple tests with is" end
      a = { args = { self:postfix(self:primary()) }, names = {} }
    end
  end
  e = node("Test", line, { e, name = name, a = a })
  if negated then e = node("Not", line, { e }) end
  return e
end

function P:filters(e)
  local n = 0
  while true do
    n = n + 1
    if n > CHAIN then self:fail("more than %d filters in a row", CHAIN) end
    if self:op "|" then e = self:filter(e)
    elseif self:is("name", "is") then e = self:test(e)
    elseif self:op "(" then e = self:call(e)
    else return e end
  end
end

return M
