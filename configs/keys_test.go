package configs

// The keys of the schema as one list: what their fields, tags and comments say.

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// key is one key of the schema.
type key struct {
	// path is as in errors, with [] for every index.
	path string
	// depth is the number of maps around it.
	depth int
	// around is the struct of the field.
	around string
	field  reflect.StructField
	// doc is the field's comment.
	doc string
	// value is the default, in YAML, if there is one.
	value    string
	hasValue bool
}

// allKeys returns the keys of the schema, a map before its own.
func allKeys(t *testing.T) []key {
	t.Helper()
	docs := fieldDocs(t)
	var keys []key
	var visit func(t reflect.Type, path string, depth int, values map[string]string)
	visit = func(typ reflect.Type, path string, depth int, values map[string]string) {
		for _, name := range keysOf(typ) {
			field, _ := fieldOf(typ, name)
			k := key{path: join(path, name), depth: depth, around: typ.Name(), field: field, doc: docs[typ.Name()+"."+field.Name]}
			if k.value, k.hasValue = values[name]; !k.hasValue {
				k.value, k.hasValue = field.Tag.Lookup("default")
			}
			keys = append(keys, k)
			inner, at := field.Type, k.path
			if inner.Kind() == reflect.Slice {
				inner, at = inner.Elem(), at+"[]"
			}
			if inner.Kind() == reflect.Pointer && inner != metadataType {
				inner = inner.Elem()
			}
			if isMap(inner) {
				var values map[string]string
				if err := yaml.Unmarshal([]byte(k.value), &values); err != nil {
					t.Fatalf("%s: default: %v", k.path, err)
				}
				visit(inner, at, depth+1, values)
			}
		}
	}
	visit(configType, "", 0, nil)
	return keys
}

// fieldDocs returns the comments of the fields of this package's structs, by Type.Field.
func fieldDocs(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, file := range parseFolder(t, token.NewFileSet(), ".") {
		for _, decl := range file.Decls {
			gen, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range gen.Specs {
				typ, ok := spec.(*ast.TypeSpec)
				if !ok {
					continue
				}
				fields, ok := typ.Type.(*ast.StructType)
				if !ok {
					continue
				}
				for _, field := range fields.Fields.List {
					for _, name := range field.Names {
						docs[typ.Name.Name+"."+name.Name] = strings.ReplaceAll(field.Doc.Text(), "{types}", xdstype.Words())
					}
				}
			}
		}
	}
	return docs
}

// parseFolder returns the files of a package, without its tests.
func parseFolder(t *testing.T, set *token.FileSet, folder string) (files []*ast.File) {
	t.Helper()
	names, err := filepath.Glob(folder + "/*.go")
	if err != nil || len(names) == 0 {
		t.Fatalf("%s has no files: %v", folder, err)
	}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

// isMap reports whether the key's value has keys of the schema, or is a list of such.
func (k key) isMap() bool {
	t := k.field.Type
	for t != metadataType && (t.Kind() == reflect.Slice || t.Kind() == reflect.Pointer) {
		t = t.Elem()
	}
	return isMap(t) && t != metadataType
}

// notes are what the tags say of the key, besides its default.
func (k key) notes() (notes []string) {
	if _, required := k.field.Tag.Lookup("required"); required {
		notes = append(notes, "Required.")
	}
	if absent, ok := k.field.Tag.Lookup("absent"); ok {
		notes = append(notes, "Default: "+absent+".")
	}
	if with, ok := k.field.Tag.Lookup("with"); ok && k.field.Type.Kind() != reflect.Bool {
		if with == string(ProtocolREST) {
			notes = append(notes, "Only with protocol: rest.")
		} else {
			notes = append(notes, "Not with protocol: rest.")
		}
	}
	return notes
}

// firstSentence returns the first sentence of the explanation, on one line.
func (k key) firstSentence() string {
	text := strings.Join(strings.Fields(k.doc), " ")
	if end := strings.Index(text, ". "); end >= 0 {
		return text[:end+1]
	}
	return text
}

// kind says to people what values the key has.
func (k key) kind() string {
	t := k.field.Type
	if list, ok := choicesOf(t); ok {
		return strings.Join(list, ", ")
	}
	switch {
	case t == durationType:
		return "time"
	case t == bytesType:
		return "size"
	case t == factorType:
		return "number"
	case t == modeType:
		return "file mode"
	case t == ratioType:
		return "number"
	case t == guardType:
		return "map, " + guardOff
	case t == metadataType || k.isMap() && t.Kind() != reflect.Slice:
		return "map"
	case k.isMap():
		return "list of maps"
	case t.Kind() == reflect.Slice:
		return "list of texts"
	case t.Kind() == reflect.Int:
		return "number"
	case t.Kind() == reflect.Bool:
		return "true, false"
	}
	return "text"
}

// choicesOf returns the words of a type that has few.
func choicesOf(t reflect.Type) (words []string, ok bool) {
	switch v := reflect.Zero(t).Interface().(type) {
	case ListenerProtocol:
		return texts(v.choices()), true
	case GuardWhen:
		return texts(v.choices()), true
	case Redirects:
		return texts(v.choices()), true
	case WhenUnreachable:
		return texts(v.choices()), true
	case Protocol:
		return texts(v.choices()), true
	case FailoverPolicy:
		return texts(v.choices()), true
	case Check:
		return texts(v.choices()), true
	case SotWAnswers:
		return texts(v.choices()), true
	case RequestNode:
		return texts(v.choices()), true
	case LoadReports:
		return texts(v.choices()), true
	case ClientCertificates:
		return texts(v.choices()), true
	case TLSVersion:
		return texts(v.choices()), true
	}
	return nil, false
}

func texts[T ~string](values []T) (words []string) {
	for _, v := range values {
		words = append(words, string(v))
	}
	return words
}
