package rights

import (
	"fmt"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"

	"github.com/xds-relay/xds-relay/identity"
)

// These are the variables of the expressions, in addition to identity.Variable.
const (
	authorityVariable = "authority"
	typeVariable      = "type_url"
	nameVariable      = "name"
)

// truth is the value of a condition. The zero value is failed: the condition could not be evaluated.
type truth uint8

const (
	failed truth = iota
	isFalse
	isTrue
)

func truthOf(b bool) truth {
	if b {
		return isTrue
	}
	return isFalse
}

// condition is a boolean expression, or an operand of one.
type condition interface {
	// at evaluates the condition for the values of all variables except the name. It returns the residual condition
	// on the name: a fixed truth if the condition does not read the name.
	at(*variables) residual
}

// residual is a condition on a name.
type residual interface {
	of(name string) truth
}

// leaf is an operand of a rule's expressions.
type leaf struct {
	id       int // different for each leaf of an expression
	personal bool
}

// of implements residual.
func (t truth) of(string) truth { return t }

// variables are the values of the variables. It implements cel.Activation.
type variables struct {
	authority, typeURL, name string
	identity                 *identity.Identity
}

// ResolveName implements cel.Activation.
func (v *variables) ResolveName(name string) (any, bool) {
	switch name {
	case authorityVariable:
		return v.authority, true
	case typeVariable:
		return v.typeURL, true
	case nameVariable:
		return v.name, true
	case identity.Variable:
		return v.identity, true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (v *variables) Parent() cel.Activation { return nil }

// both is a && b or, if either is set, a || b. CEL: "Logical Operators": if one operand decides, it does not matter
// whether the other can be evaluated.
type both struct {
	a, b   condition
	either bool
}

func (c *both) at(v *variables) residual {
	a, b := c.a.at(v), c.b.at(v)
	ta, fixedA := a.(truth)
	tb, fixedB := b.(truth)
	decides := truthOf(c.either)
	switch {
	case fixedA && ta == decides, fixedB && tb == decides:
		return decides
	case fixedA && fixedB:
		return c.combine(ta, tb)
	case fixedA && ta != failed:
		return b
	case fixedB && tb != failed:
		return a
	}
	return &bothOf{c, a, b}
}

// combine returns the truth of the whole condition.
func (c *both) combine(a, b truth) truth {
	switch decides := truthOf(c.either); {
	case a == decides || b == decides:
		return decides
	case a == failed || b == failed:
		return failed
	}
	return a
}

type bothOf struct {
	*both
	a, b residual
}

func (r *bothOf) of(name string) truth {
	a := r.a.of(name)
	if a == truthOf(r.either) {
		return a
	}
	return r.combine(a, r.b.of(name))
}

// not is !a.
type not struct{ a condition }

func (c *not) at(v *variables) residual {
	a := c.a.at(v)
	if t, fixed := a.(truth); fixed {
		return t.not()
	}
	return &notOf{a}
}

func (t truth) not() truth {
	switch t {
	case isTrue:
		return isFalse
	case isFalse:
		return isTrue
	}
	return failed
}

type notOf struct{ a residual }

func (r *notOf) of(name string) truth { return r.a.of(name).not() }

// atom is an expression that is evaluated as a whole.
type atom struct {
	leaf
	program   cel.Program
	readsName bool
}

func (c *atom) at(v *variables) residual {
	if c.readsName {
		return &atomOf{c, *v}
	}
	return evaluate(c.program, v)
}

func evaluate(p cel.Program, v *variables) truth {
	out, _, err := p.Eval(v)
	if err != nil {
		return failed
	}
	b, ok := out.(types.Bool)
	if !ok {
		return failed
	}
	return truthOf(bool(b))
}

type atomOf struct {
	*atom
	variables variables
}

func (r *atomOf) of(name string) truth {
	v := r.variables
	v.name = name
	return evaluate(r.program, &v)
}

// compiler makes conditions from a checked expression.
type compiler struct {
	env    *cel.Env
	info   *ast.SourceInfo
	leaves int
}

func (c *compiler) leaf(e ast.Expr) leaf {
	c.leaves++
	return leaf{c.leaves, reads(e, identity.Variable)}
}

func (c *compiler) condition(e ast.Expr) (condition, error) {
	if e.Kind() == ast.CallKind {
		switch call := e.AsCall(); call.FunctionName() {
		case operators.LogicalAnd, operators.LogicalOr:
			return c.both(call.Args(), call.FunctionName() == operators.LogicalOr)
		case operators.LogicalNot:
			a, err := c.condition(call.Args()[0])
			return &not{a}, err
		}
	}
	if t := textsOf(e); t != nil {
		return t, nil
	}
	whole, err := c.atom(e)
	if err != nil {
		return nil, err
	}
	how, with := comparedWith(e)
	if with == nil {
		return whole, nil
	}
	if with.Kind() == ast.LiteralKind && how != isIn {
		if text, ok := with.AsLiteral().(types.String); ok {
			return &textOf{whole.leaf, how, string(text)}, nil
		}
	}
	p, err := c.program(with)
	return &comparison{whole.leaf, how, textOfExpr(with), p, whole}, err
}

func (c *compiler) both(args []ast.Expr, either bool) (condition, error) {
	all, err := c.condition(args[0])
	for _, arg := range args[1:] {
		if err != nil {
			return nil, err
		}
		var next condition
		next, err = c.condition(arg)
		all = &both{all, next, either}
	}
	return all, err
}

func (c *compiler) atom(e ast.Expr) (*atom, error) {
	p, err := c.program(e)
	return &atom{c.leaf(e), p, reads(e, nameVariable)}, err
}

// evalCost bounds the cost of an evaluation, in CEL's units: about one per operation, and one per ten characters
// read.
const evalCost = 100_000

func (c *compiler) program(e ast.Expr) (cel.Program, error) {
	text, err := cel.ExprToString(e, c.info)
	if err != nil {
		return nil, err
	}
	checked, issues := c.env.Compile(text)
	if issues.Err() != nil {
		return nil, fmt.Errorf("a part of the expression does not compile: %w", issues.Err())
	}
	options := []cel.ProgramOption{cel.EvalOptions(cel.OptOptimize)}
	if !cheap(e) {
		options = append(options, cel.CostLimit(evalCost)) // counting takes half of the time
	}
	return c.env.Program(checked, options...)
}

// cheap reports whether an evaluation takes no longer than a few passes over each character and element.
func cheap(e ast.Expr) bool {
	is := true
	ast.PreOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		is = is && e.Kind() != ast.ComprehensionKind && (e.Kind() != ast.CallKind || e.AsCall().FunctionName() != overloads.Matches)
	}))
	return is
}

// comparedWith returns how an expression compares the name, and the expression that it compares the name with. That
// is nil if the expression does not compare the name.
func comparedWith(e ast.Expr) (how, ast.Expr) {
	if e.Kind() != ast.CallKind {
		return 0, nil
	}
	call := e.AsCall()
	args := call.Args()
	var with ast.Expr
	is := hows[call.FunctionName()]
	switch {
	case is == 0:
	case call.IsMemberFunction():
		if isName(call.Target()) {
			with = args[0]
		}
	case isName(args[0]):
		with = args[1]
	case isName(args[1]) && is != isIn:
		with = args[0]
	}
	if with == nil || reads(with, nameVariable) {
		return 0, nil
	}
	return is, with
}

func isName(e ast.Expr) bool { return e.Kind() == ast.IdentKind && e.AsIdent() == nameVariable }

// reads reports whether an expression may read a variable. A comprehension's variable with the same name also counts.
func reads(e ast.Expr, variable string) (is bool) {
	ast.PreOrderVisit(e, ast.NewExprVisitor(func(e ast.Expr) {
		is = is || e.Kind() == ast.IdentKind && strings.TrimPrefix(e.AsIdent(), ".") == variable
	}))
	return is
}
