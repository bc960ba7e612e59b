package configs

// This file compiles the CEL expressions of old_style_names and views, and evaluates them for
// clients. The expressions are the operator's, but their input comes from clients, so the cost
// of an evaluation is bounded.

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xds-relay/xds-relay/identity"
)

const (
	// evalCost bounds an evaluation, in CEL's units: about one for each operation, and one for each ten
	// letters read. Expressions over the Nodes of real clients stay below it. With the largest Node that
	// fits into a request, the most expensive evaluation ends within a second.
	evalCost = 100_000
	// maxPartition bounds the name of a partition, in bytes. It becomes part
	// of keys.
	maxPartition = 1024
	// nodeVariable is the client's Node in expressions.
	nodeVariable = "node"
)

// Client is what expressions can read about a client.
type Client struct {
	Node     *corev3.Node       // as the client sends it, unverified; nil is an empty one
	Identity *identity.Identity // authenticated; nil is an anonymous client
}

// program is a compiled expression, or nil for an empty one. Safe for
// concurrent use.
type program = cel.Program

var anonymous = identity.Anonymous(nil)

var celEnv = sync.OnceValues(func() (*cel.Env, error) {
	identities, err := identity.CELOptions(&corev3.Node{})
	if err != nil {
		return nil, err
	}
	return cel.NewEnv(
		identities,
		cel.Variable(nodeVariable, cel.ObjectType("envoy.config.core.v3.Node")),
		cel.Variable("type_url", cel.StringType),
	)
})

// compile prepares r. The errors' paths are keys of the rule.
func (r *Rule) compile() (errs Errors) {
	var err error
	if r.when, err = compileBool(r.When); err != nil {
		errs = append(errs, Error{Path: "when", Err: err})
	}
	var reads nodeReads
	if r.partition, reads, err = compile(r.Partition, cel.StringType); err != nil {
		errs = append(errs, Error{Path: "partition", Err: err})
	}
	r.joins = reads.joins
	return append(errs, r.compileNodeFields(reads)...)
}

func compileBool(expression string) (program, error) {
	p, _, err := compile(expression, cel.BoolType)
	return p, err
}

// compile compiles an expression over clients. Its type is result, or is known only at evaluation, like
// that of node.metadata["x"]. compile also returns what the expression reads.
func compile(expression string, result *cel.Type) (program, nodeReads, error) {
	return ofClients.compile(expression, result)
}

// expressions compiles expressions over the same variables.
type expressions struct {
	env  func() (*cel.Env, error)
	over string // the variables, in words
}

var ofClients = expressions{celEnv, "node, identity and type_url"}

func (of expressions) compile(expression string, result *cel.Type) (program, nodeReads, error) {
	if expression == "" {
		return nil, nodeReads{}, nil
	}
	env, err := of.env()
	if err != nil {
		return nil, nodeReads{}, err
	}
	checked, err := of.check(env, expression, result)
	if err != nil {
		return nil, nodeReads{}, err
	}
	p, err := env.Program(checked, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(evalCost))
	if err != nil {
		return nil, nodeReads{}, fmt.Errorf("does not compile: %w (want CEL over %s)", err, of.over)
	}
	return p, readsOf(checked.NativeRep().Expr()), nil
}

// check checks an expression whose type is result, or is known only at evaluation.
func (of expressions) check(env *cel.Env, expression string, result *cel.Type) (*cel.Ast, error) {
	checked, issues := env.Compile(expression)
	if issues.Err() != nil {
		return nil, fmt.Errorf("does not compile: %s (want CEL over %s)", summary(issues), of.over)
	}
	if t := checked.OutputType(); !t.IsExactType(result) && !t.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("gives %s (want %s)", t, result)
	}
	// Regular expressions have to be constants, which are compiled now: the cost limit does not count
	// the compilation of one that comes from a client.
	for _, call := range ast.MatchDescendants(ast.NavigateAST(checked.NativeRep()), ast.FunctionMatcher("matches")) {
		args := call.AsCall().Args()
		if args[len(args)-1].Kind() != ast.LiteralKind {
			return nil, errors.New("takes the pattern of matches() from the client (want a constant)")
		}
	}
	return checked, nil
}

// summary makes one line of CEL's report.
func summary(issues *cel.Issues) string {
	var parts []string
	for _, issue := range issues.Errors() {
		place := fmt.Sprintf("column %d", issue.Location.Column()+1)
		if issue.Location.Line() > 1 {
			place = fmt.Sprintf("line %d, %s", issue.Location.Line(), place)
		}
		message, _, _ := strings.Cut(issue.Message, "\n")
		parts = append(parts, place+": "+inWords(strings.TrimSuffix(message, " (in container '')")))
	}
	return strings.Join(parts, "; ")
}

var (
	// expected are the tokens that CEL's parser would have taken. The list is nearly the same everywhere.
	expected = regexp.MustCompile(` expecting \{('[^']*'|[A-Z_]+)(, ('[^']*'|[A-Z_]+)){3,}\}`)
	// undefined is the field that a message does not have.
	undefined = regexp.MustCompile(`^undefined field '(\w+)'$`)
	// assigned is what CEL says of one "=".
	assigned = regexp.MustCompile(`token recognition error at: '= ?.?'$`)
)

// inWords returns a message of CEL in the words of somebody who writes a rule.
func inWords(message string) string {
	message = expected.ReplaceAllString(message, "")
	message = strings.ReplaceAll(message, "mismatched input '<EOF>'", "the expression ends too early")
	if field := undefined.FindStringSubmatch(message); field != nil {
		if (&corev3.Locality{}).ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(field[1])) != nil {
			return message + fmt.Sprintf(" (did you mean %q?)", "locality."+field[1])
		}
		return message + didYouMean(field[1], celFields())
	}
	if assigned.MatchString(message) {
		return message + ` (did you mean "=="?)`
	}
	return message
}

// celFields returns the names of the fields that expressions may read.
var celFields = sync.OnceValue(func() (names []string) {
	for _, m := range []protoreflect.ProtoMessage{&corev3.Node{}, &corev3.Locality{}} {
		fields := m.ProtoReflect().Descriptor().Fields()
		for i := range fields.Len() {
			names = append(names, string(fields.Get(i).Name()))
		}
	}
	return append(names, identity.Fields()...)
})

// Always reports whether r matches every client. The relay never reaches a rule after it.
func (r *Rule) Always() bool { return always(r.When) }

func always(when string) bool {
	when = strings.TrimSpace(when)
	return when == "" || when == "true"
}

// Matches reports whether r is for a client that requests typeURL. An error means that the relay cannot evaluate the
// expression, for example because it reads metadata that the Node does not have.
func (r *Rule) Matches(c Client, typeURL string) (bool, error) {
	if r.when == nil {
		return true, nil
	}
	return eval[bool](r.when, c, typeURL)
}

// PartitionOf returns the partition of a client that requests typeURL: a text of at most 1 KiB. An error means that the
// relay cannot evaluate the expression.
func (r *Rule) PartitionOf(c Client, typeURL string) (string, error) {
	if r.partition == nil {
		return "", nil
	}
	partition, err := eval[string](r.partition, c, typeURL)
	if err != nil {
		return "", err
	}
	if len(partition) > maxPartition {
		return "", fmt.Errorf("gives %d bytes (want up to %d)", len(partition), maxPartition)
	}
	return partition, nil
}

// Upstream returns the fields of a client's Node that the relay sends upstream for its partition: its id
// and cluster, what the partition expression reads, and NodeFields; or the whole Node, if the partition
// is node.id. It leaves out fields that only When reads, because clients of one partition may differ in
// them.
func (r *Rule) Upstream() NodeFields { return r.upstream }

// Joins reports whether Partition concatenates several texts of a client's Node. Then different Nodes
// can have the same partition: "a/b" + "/" + "c" equals "a" + "/" + "b/c".
func (r *Rule) Joins() bool { return r.joins }

func eval[T any](p program, c Client, typeURL string) (value T, err error) {
	if c.Node == nil {
		c.Node = &corev3.Node{}
	}
	if c.Identity == nil {
		c.Identity = anonymous
	}
	return evalOver[T](p, map[string]any{nodeVariable: c.Node, identity.Variable: c.Identity, "type_url": typeURL})
}

func evalOver[T any](p program, variables map[string]any) (value T, err error) {
	out, _, err := p.Eval(variables)
	if err != nil {
		return value, err
	}
	value, ok := out.Value().(T)
	if !ok {
		return value, fmt.Errorf("gives %s (want %T)", out.Type().TypeName(), value)
	}
	return value, nil
}
