package configs

// Every key is declared, explained and used.

import (
	"go/ast"
	"go/token"
	"go/types"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestEveryKeyIsDeclaredWhole: each key has an explanation, and says what holds if it is left
// out. (That the reference has an example of it, TestGeneratedFilesAreUpToDate says.)
func TestEveryKeyIsDeclaredWhole(t *testing.T) {
	keys := allKeys(t)
	if len(keys) < 90 {
		t.Errorf("got %d keys, want more", len(keys))
	}
	for _, k := range keys {
		if !strings.HasSuffix(strings.TrimSpace(k.doc), ".") && !strings.Contains(k.doc, "\n\t") {
			t.Errorf("%s has no explanation (want sentences in the comment of its field)", k.path)
		}
		var says []string
		for _, tag := range []string{"default", "absent", "required"} {
			if _, ok := k.field.Tag.Lookup(tag); ok || tag == "default" && k.hasValue {
				says = append(says, tag)
			}
		}
		keysSay := k.isMap() && k.field.Type.Kind() == reflect.Struct
		if len(says) > 1 || len(says) == 0 && !keysSay {
			t.Errorf("%s has %v (want one of default, absent and required)", k.path, says)
		}
		if k.hasValue && !k.isMap() {
			if err := yaml.Unmarshal([]byte(k.value), reflect.New(k.field.Type).Interface()); err != nil {
				t.Errorf("%s: default: %v", k.path, err)
			}
		}
	}
}

// TestEveryKeyIsRead: the relay reads each key somewhere, besides checking it and giving it a
// default.
func TestEveryKeyIsRead(t *testing.T) {
	p := packages{t: t, set: token.NewFileSet(), checked: map[string]*types.Package{}, read: map[*types.Var]bool{}}
	configs, _ := p.Import(module + "configs")
	_, _ = p.Import(module + "cmd/xds-relay")
	for _, k := range allKeys(t) {
		if k.isMap() {
			continue
		}
		s := configs.Scope().Lookup(k.around).Type().Underlying().(*types.Struct)
		for field := range s.Fields() {
			if field.Name() == k.field.Name && !p.read[field] {
				t.Errorf("nothing reads %s", k.path)
			}
		}
	}
}

const module = "github.com/xds-relay/xds-relay/"

// packages checks the types of this module's packages, and notes which fields they select.
// Other modules' packages have nothing in them, and the errors of that do not matter.
type packages struct {
	t       *testing.T
	set     *token.FileSet
	checked map[string]*types.Package
	read    map[*types.Var]bool
}

// Import implements types.Importer.
func (p packages) Import(path string) (*types.Package, error) {
	if done := p.checked[path]; done != nil {
		return done, nil
	}
	folder, ours := strings.CutPrefix(path, module)
	if !ours {
		p.checked[path] = types.NewPackage(path, filepath.Base(path))
		p.checked[path].MarkComplete()
		return p.checked[path], nil
	}
	files := parseFolder(p.t, p.set, filepath.Join("..", folder))
	info := types.Info{Selections: map[*ast.SelectorExpr]*types.Selection{}}
	check := types.Config{Error: func(error) {}, Importer: p}
	done, _ := check.Check(path, p.set, files, &info)
	p.checked[path] = done
	for _, file := range files {
		for _, decl := range file.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && checks(f) {
				continue
			}
			ast.Inspect(decl, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.SelectorExpr:
					p.note(info.Selections[n], false)
				case *ast.CallExpr: // a conversion to another package's struct takes all fields
					if to, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) == 1 && info.Selections[to] == nil {
						from, _ := n.Args[0].(*ast.SelectorExpr)
						p.note(info.Selections[from], true)
					}
				}
				return true
			})
		}
	}
	return done, nil
}

// note notes a field, and those of its struct if that is used whole.
func (p packages) note(s *types.Selection, whole bool) {
	if s == nil {
		return
	}
	if field, ok := s.Obj().(*types.Var); ok {
		p.read[field] = true
	}
	if inner, ok := s.Type().Underlying().(*types.Struct); ok && whole {
		for field := range inner.Fields() {
			p.read[field] = true
		}
	}
}

// checks reports whether f looks at keys only to check or set them.
func checks(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return false
	}
	receiver := types.ExprString(f.Recv.List[0].Type)
	return receiver == "*checker" || receiver == "defaulter"
}
