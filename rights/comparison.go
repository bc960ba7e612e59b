package rights

import (
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/traits"

	"github.com/xds-relay/xds-relay/identity"
)

// This file compares strings without CEL. Most expressions consist of such comparisons, and an evaluation by CEL
// takes a microsecond.

// text is a string expression. It returns false if it cannot be evaluated.
type text func(*variables) (string, bool)

// textOfExpr returns an expression as a text, nil if this file does not support it.
func textOfExpr(e ast.Expr) text {
	switch e.Kind() {
	case ast.LiteralKind:
		if is, ok := e.AsLiteral().(types.String); ok {
			return func(*variables) (string, bool) { return string(is), true }
		}
	case ast.IdentKind:
		switch e.AsIdent() {
		case authorityVariable:
			return func(v *variables) (string, bool) { return v.authority, true }
		case typeVariable:
			return func(v *variables) (string, bool) { return v.typeURL, true }
		}
	case ast.SelectKind:
		of, field := e.AsSelect().Operand(), identity.TextField(e.AsSelect().FieldName())
		if field != nil && !e.AsSelect().IsTestOnly() && of.Kind() == ast.IdentKind && of.AsIdent() == identity.Variable {
			return func(v *variables) (string, bool) {
				is := field(v.identity)
				return is, is != ""
			}
		}
	case ast.CallKind:
		if call := e.AsCall(); call.FunctionName() == operators.Add {
			a, b := textOfExpr(call.Args()[0]), textOfExpr(call.Args()[1])
			if a == nil || b == nil {
				return nil
			}
			return func(v *variables) (string, bool) {
				first, okFirst := a(v)
				second, ok := b(v)
				return first + second, ok && okFirst
			}
		}
	}
	return nil
}

// textsOf returns an expression as a comparison of texts, nil if it is not one of supported texts.
func textsOf(e ast.Expr) *texts {
	if e.Kind() != ast.CallKind {
		return nil
	}
	call := e.AsCall()
	operands := call.Args()
	if call.IsMemberFunction() {
		operands = append([]ast.Expr{call.Target()}, operands...)
	}
	how := hows[call.FunctionName()]
	if how == 0 || how == isIn || len(operands) != 2 {
		return nil
	}
	t := &texts{how, textOfExpr(operands[0]), textOfExpr(operands[1])}
	if t.a == nil || t.b == nil {
		return nil
	}
	return t
}

// texts is a comparison of two texts that do not read the name.
type texts struct {
	how  how
	a, b text
}

func (t *texts) at(v *variables) residual {
	a, okA := t.a(v)
	b, okB := t.b(v)
	if !okA || !okB {
		return failed
	}
	return t.how.holds(a, b)
}

// comparison compares the name with an expression that does not read the name. If that expression is a string or a
// list, CEL need not evaluate the comparison for each name.
type comparison struct {
	leaf
	how   how
	text  text // nil if the expression is not a supported string
	with  cel.Program
	whole *atom // the comparison itself, for other expressions
}

// how is the kind of a comparison.
type how uint8

const (
	equals how = iota + 1
	differs
	startsWith
	endsWith
	contains
	isIn
)

var hows = map[string]how{
	operators.Equals: equals, operators.NotEquals: differs, operators.In: isIn,
	overloads.StartsWith: startsWith, overloads.EndsWith: endsWith, overloads.Contains: contains,
}

func (c *comparison) at(v *variables) residual {
	if c.text != nil && c.how != isIn {
		text, ok := c.text(v)
		if !ok {
			return failed
		}
		return &textOf{c.leaf, c.how, text}
	}
	with, _, err := c.with.Eval(v)
	if err != nil {
		return failed
	}
	if c.how == isIn {
		if list, ok := with.(traits.Lister); ok {
			return oneOf(c.leaf, list)
		}
		return c.whole.at(v)
	}
	text, ok := with.(types.String)
	if !ok {
		return c.whole.at(v)
	}
	return &textOf{c.leaf, c.how, string(text)}
}

type textOf struct {
	leaf
	how  how
	text string
}

// at implements condition, for a literal string in the expression.
func (r *textOf) at(*variables) residual { return r }

func (r *textOf) of(name string) truth { return r.how.holds(name, r.text) }

func (h how) holds(a, b string) truth {
	switch h {
	case equals:
		return truthOf(a == b)
	case differs:
		return truthOf(a != b)
	case startsWith:
		return truthOf(strings.HasPrefix(a, b))
	case endsWith:
		return truthOf(strings.HasSuffix(a, b))
	default:
		return truthOf(strings.Contains(a, b))
	}
}

// oneOf returns the condition that the name is in a list. Elements that are not strings match no name.
func oneOf(of leaf, list traits.Lister) residual {
	names := map[string]struct{}{}
	for it := list.Iterator(); it.HasNext() == types.True; {
		if text, ok := it.Next().(types.String); ok {
			names[string(text)] = struct{}{}
		}
	}
	return &namesIn{of, names}
}

type namesIn struct {
	leaf
	names map[string]struct{}
}

func (r *namesIn) of(name string) truth {
	_, ok := r.names[name]
	return truthOf(ok)
}
