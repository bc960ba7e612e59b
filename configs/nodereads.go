package configs

// This file finds the fields of a Node that an expression reads.

import (
	"slices"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
)

// nodeReads says which parts of a Node an expression reads, and how.
type nodeReads struct {
	paths []nodePath
	// perNode: the expression is node.id, so it gives different texts for different nodes.
	perNode bool
	// joins: the expression concatenates several texts that depend on the client, so that different
	// Nodes can give the same text.
	joins bool
}

// readsOf returns what a checked expression reads. If the expression reads a key that depends on the
// client, readsOf returns the map or the list around it as a whole.
func readsOf(e ast.Expr) nodeReads {
	var r nodeReads
	r.visit(e)
	r.perNode = givesID(e)
	return r
}

func (r *nodeReads) visit(e ast.Expr) {
	if c, ok := chainOf(e); ok {
		r.paths = append(r.paths, c.path)
		for _, key := range c.keys {
			r.visit(key)
		}
		return
	}
	switch e.Kind() {
	case ast.SelectKind:
		r.visit(e.AsSelect().Operand())
	case ast.CallKind:
		r.joins = r.joins || varying(e) > 1
		if call := e.AsCall(); call.IsMemberFunction() {
			r.visit(call.Target())
		}
		for _, arg := range e.AsCall().Args() {
			r.visit(arg)
		}
	case ast.ListKind:
		for _, element := range e.AsList().Elements() {
			r.visit(element)
		}
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			r.visit(entry.AsMapEntry().Key())
			r.visit(entry.AsMapEntry().Value())
		}
	case ast.StructKind:
		for _, field := range e.AsStruct().Fields() {
			r.visit(field.AsStructField().Value())
		}
	case ast.ComprehensionKind:
		c := e.AsComprehension()
		r.visit(c.IterRange())
		r.visit(c.AccuInit())
		if c.IterVar() == nodeVariable || c.IterVar2() == nodeVariable {
			return // there, "node" is the variable of the comprehension
		}
		r.visit(c.LoopCondition())
		r.visit(c.LoopStep())
		r.visit(c.Result())
	}
}

// chain is a path of accesses that begins at the Node, such as node.metadata["x"].y.
type chain struct {
	path nodePath
	// ends: path ends here, because the next key depends on the client or is an index of a list.
	ends bool
	// keys are the expressions of those keys.
	keys []ast.Expr
}

func chainOf(e ast.Expr) (c chain, ok bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return chain{}, e.AsIdent() == nodeVariable
	case ast.SelectKind:
		if c, ok = chainOf(e.AsSelect().Operand()); ok && !c.ends {
			c.path = append(c.path, e.AsSelect().FieldName())
		}
		return c, ok
	case ast.CallKind:
		call := e.AsCall()
		if call.FunctionName() != operators.Index {
			return c, false
		}
		if c, ok = chainOf(call.Args()[0]); !ok {
			return c, false
		}
		key := call.Args()[1]
		if text, isText := literalText(key); isText && !c.ends {
			c.path = append(c.path, text)
			return c, true
		}
		c.ends, c.keys = true, append(c.keys, key)
		return c, true
	}
	return c, false
}

func literalText(e ast.Expr) (text string, ok bool) {
	if e.Kind() == ast.LiteralKind {
		text, ok = e.AsLiteral().Value().(string)
	}
	return text, ok
}

// givesID reports whether an expression is exactly node.id. A text that combines the id with other texts
// may be the same for different nodes.
func givesID(e ast.Expr) bool {
	c, ok := chainOf(e)
	return ok && !c.ends && slices.Equal(c.path, nodePath{"id"})
}

// varying counts the operands of a concatenation that are not constants.
func varying(e ast.Expr) int {
	if e.Kind() == ast.LiteralKind {
		return 0
	}
	if e.Kind() != ast.CallKind || e.AsCall().FunctionName() != operators.Add {
		return 1
	}
	args := e.AsCall().Args()
	return varying(args[0]) + varying(args[1])
}
