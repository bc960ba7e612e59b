package rights

import (
	"bytes"
	"encoding/json"
	"slices"

	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/xds-relay/xds-relay/identity"
)

// This file finds the parts of an identity that expressions read.

// identityPath is the path to a part of an identity, such as [claims sub]. It is empty for the whole identity.
type identityPath []string

// identityReads returns the parts of the identity that an expression reads.
func identityReads(checked *ast.AST) (paths []identityPath) {
	isIdentity := func(e ast.NavigableExpr) bool {
		return e.Kind() == ast.IdentKind && (e.AsIdent() == identity.Variable || e.AsIdent() == "."+identity.Variable)
	}
	for _, e := range ast.MatchDescendants(ast.NavigateAST(checked), isIdentity) {
		var path identityPath
		for {
			around, ok := e.Parent()
			if !ok {
				break
			}
			step, ok := stepInto(around, e)
			if !ok {
				break
			}
			path, e = append(path, step), around
		}
		paths = append(paths, path)
	}
	return paths
}

// stepInto returns the constant key by which around selects from e.
func stepInto(around, e ast.NavigableExpr) (key string, ok bool) {
	switch around.Kind() {
	case ast.SelectKind:
		return around.AsSelect().FieldName(), true
	case ast.CallKind:
		call := around.AsCall()
		if call.FunctionName() != operators.Index || call.Args()[0].ID() != e.ID() || call.Args()[1].Kind() != ast.LiteralKind {
			return "", false
		}
		text, ok := call.Args()[1].AsLiteral().(types.String)
		return string(text), ok
	default:
		return "", false
	}
}

// keyOf returns a text that is equal for identities that are equal at these paths. It returns false if there is none.
func keyOf(id *identity.Identity, paths []identityPath) (string, bool) {
	whole, err := json.Marshal(id)
	if err != nil {
		return "", false
	}
	var fields map[string]any
	numbers := json.NewDecoder(bytes.NewReader(whole))
	numbers.UseNumber() // keeps all digits
	if err := numbers.Decode(&fields); err != nil {
		return "", false
	}
	if id.Claims != nil && len(id.Claims) == 0 {
		fields["claims"] = map[string]any{} // JSON leaves out empty claims
	}
	// part is the value at a path. For a path that does not exist, it has the depth up to which it exists, and the
	// value there.
	type part struct {
		Depth int
		Value any
	}
	parts := make([]part, 0, len(paths))
	for _, path := range paths {
		p := part{Value: fields}
		for _, key := range path {
			within, isMap := p.Value.(map[string]any)
			value, there := within[key]
			if !isMap {
				break
			}
			if p.Depth++; !there {
				p = part{Depth: -p.Depth}
				break
			}
			p.Value = value
		}
		parts = append(parts, p)
	}
	key, err := json.Marshal(parts)
	return string(key), err == nil
}

// unique returns paths without duplicates.
func unique(paths []identityPath) []identityPath {
	slices.SortFunc(paths, slices.Compare[identityPath])
	return slices.CompactFunc(paths, slices.Equal[identityPath])
}
