-- The parser of statements: a template's text to a tree.
local lex, expr = require "pl.jinja.lex", require "pl.jinja.expr"
local P, node = expr.P, expr.node
local M = {}

local statements = {}

-- Statements and text up to a tag whose word is in `ends`; the word is left in place. ends nil: to the end.
function P:body(ends, what)
  local out = {}
  self:enter()
  while self.cur.t ~= "end" do
    local t = self.cur
    if t.t == "data" then
      self:next()
      out[#out + 1] = node("Data", t.line, { v = t.v })
    elseif t.t == "var_begin" then
      self:next()
      out[#out + 1] = node("Print", t.line, { self:tuple() })
      self:expect "var_end"
    else
      self:expect "block_begin"
      local word = self.cur
      if word.t ~= "name" then self:fail "tag name expected" end
      if ends and ends[word.v] then
        self:leave()
        return out
      end
      local f = statements[word.v]
      if not f then
        local open = what and (" Expected %s."):format(what) or ""
        self:fail("Encountered unknown tag '%s'.%s", word.v, open)
      end
      self:next()
      local n = f(self, word.line)
      if n then out[#out + 1] = n end
      self:expect "block_end"
    end
  end
  if ends then self:fail("Unexpected end of template, expected %s.", what) end
  self:leave()
  return out
end

-- The body of the block whose tag stands here, up to and with its end tag's word.
function P:block(what, ...)
  local ends = { [what] = true }
  for _, w in ipairs { ... } do ends[w] = true end
  self:skip("op", ":")
  self:expect "block_end"
  local body = self:body(ends, "'" .. what .. "'")
  return body, self:next().v
end

-- What may be assigned to.
local function target(self, o)
  local e
  if o and o.name_only then
    local t = self:expect "name"
    e = node("Name", t.line, { name = t.v })
  else
    e = self:tuple { simple = true, extra = o and o.extra, namespace = o and o.namespace }
  end
  local function check(n)
    if n.t == "Tuple" then
      for _, x in ipairs(n.items) do check(x) end
    elseif n.t ~= "Name" and n.t ~= "NsRef" then
      lex.syntax(n.line, "can't assign to %s", n.t == "Const" and "a constant" or "this expression")
    end
  end
  check(e)
  return e
end

statements["for"] = function(self, line)
  local to = target(self, { extra = { ["in"] = true } })
  local function no_loop(n)
    if n.t == "Name" and n.name == "loop" then
      lex.syntax(n.line, "can't assign to special loop variable in for-loop target")
    end
    for _, x in ipairs(n.items or {}) do no_loop(x) end
  end
  no_loop(to)
  self:expect("name", "in")
  local iter = self:tuple { no_condition = true, extra = { recursive = true } }
  local test = self:skip("name", "if") and self:expression() or nil
  local recursive = self:skip("name", "recursive") and true or false
  self.loops = (self.loops or 0) + 1
  local before = self.used.loop
  local body, word = self:block("endfor", "else")
  self.loops = self.loops - 1
  local uses_loop = self.used.loop ~= before
  local other
  if word == "else" then other = self:block "endfor" end
  return node("For", line, { target = to, iter = iter, test = test, recursive = recursive, body = body, other = other,
    uses_loop = uses_loop })
end

statements["if"] = function(self, line)
  local n = node("If", line, { tests = {}, bodies = {} })
  while true do
    n.tests[#n.tests + 1] = self:tuple { no_condition = true }
    local body, word = self:block("endif", "elif", "else")
    n.bodies[#n.bodies + 1] = body
    if word == "endif" then return n end
    if word == "else" then
      n.other = self:block "endif"
      return n
    end
  end
end

for _, word in ipairs { "break", "continue" } do
  statements[word] = function(self, line)
    if (self.loops or 0) == 0 then lex.syntax(line, "'%s' outside loop", word) end
    return node(word == "break" and "Break" or "Continue", line, {})
  end
end

statements.set = function(self, line)
  local to = target(self, { namespace = true })
  if self:skip("op", "=") then return node("Set", line, { target = to, self:tuple() }) end
  local filter = self:op "|" and self:filter(node("Hole", line, {})) or nil
  local body = self:block "endset"
  return node("SetBlock", line, { target = to, filter = filter, body = body })
end

-- Within a macro or a caller's block, `break` has no loop.
-- Also: which of the names that a macro may be asked for are used in it.
local function apart(self, what)
  local loops, used = self.loops, self.used
  local before = { caller = used.caller, kwargs = used.kwargs, varargs = used.varargs }
  self.loops = 0
  local body = self:block(what)
  self.loops = loops
  local uses = {}
  for _, name in ipairs { "caller", "kwargs", "varargs" } do uses[name] = used[name] ~= before[name] end
  return body, uses
end

local function signature(self)
  local params, defaults = {}, {}
  self:expect("op", "(")
  while not self:op ")" do
    if #params > 0 then self:expect("op", ",") end
    params[#params + 1] = target(self, { name_only = true }).name
    if self:skip("op", "=") then
      defaults[#params] = self:expression()
    elseif next(defaults) then
      self:fail "non-default argument follows default argument"
    end
  end
  self:expect("op", ")")
  return params, defaults
end

statements.macro = function(self, line)
  local name = target(self, { name_only = true }).name
  local params, defaults = signature(self)
  local body, uses = apart(self, "endmacro")
  return node("Macro", line, { name = name, params = params, defaults = defaults, body = body, uses = uses })
end

statements.call = function(self, line)
  local params, defaults = {}, {}
  if self:op "(" then params, defaults = signature(self) end
  local call = self:expression()
  if call.t ~= "Call" then self:fail "expected call" end
  local body, uses = apart(self, "endcall")
  local caller = node("Macro", line,
    { name = "caller", params = params, defaults = defaults, body = body, uses = uses })
  return node("CallBlock", line, { call = call, caller = caller })
end

statements.generation = function(self, line)
  return node("Generation", line, { body = (apart(self, "endgeneration")) })
end

statements.filter = function(self, line)
  local filter = self:filter(node("Hole", line, {}), true)
  return node("FilterBlock", line, { filter = filter, body = self:block "endfilter" })
end

statements.with = function(self, line)
  local targets, values = {}, {}
  while self.cur.t ~= "block_end" do
    if #targets > 0 then self:expect("op", ",") end
    targets[#targets + 1] = target(self)
    self:expect("op", "=")
    values[#values + 1] = self:expression()
  end
  return node("With", line, { targets = targets, values = values, body = self:block "endwith" })
end

statements.autoescape = function(self, line)
  local e = self:expression()
  if e.t ~= "Const" or e.v ~= false then lex.syntax(line, "autoescape: only false is known here") end
  return node("With", line, { targets = {}, values = {}, body = self:block "endautoescape" })
end

statements.print = function(self, line)
  local items = {}
  while self.cur.t ~= "block_end" do
    if #items > 0 then self:expect("op", ",") end
    items[#items + 1] = self:expression()
  end
  return node("Print", line, items)
end

for _, word in ipairs { "include", "import", "from", "extends" } do
  statements[word] = function(_, line)
    lex.syntax(line, "'%s': a chat template cannot use other templates", word)
  end
end
statements.block = function(_, line)
  lex.syntax(line, "'block': a chat template has no template to fill it")
end

--- The tree of a template.
function M.parse(source)
  local p = expr.new(lex.tokens(source))
  return p:body(nil)
end

return M
