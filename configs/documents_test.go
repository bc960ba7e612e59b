package configs

// The pages name only what exists: files, sections of other pages, keys of the configuration. ARCHITECTURE.md, the
// glossary and CONTRIBUTING's "Where to add things" also name what the code declares.

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const repository = ".."

var (
	fenced     = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	quoted     = regexp.MustCompile("`([^`\n]+)`")
	pathShaped = regexp.MustCompile(`^[\w.-]*[\w-]/[\w./*-]*$`)
	fileShaped = regexp.MustCompile(`(/|\.(go|md|mod|yaml|json|txt|svg|png|sh))$`)
	nameShaped = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9]*(\.[A-Za-z][A-Za-z0-9]*)*$`)
	keyShaped  = regexp.MustCompile(`^[a-z_]+(\[\])?(\.[a-z_]+(\[\])?)+$`)
	linked     = regexp.MustCompile(`\]\(([^)\s:#]*)(?:#([^)\s]*))?\)`)
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	anchor     = regexp.MustCompile(`<a (?:id|name)="([^"]+)"`)
	// placed is declarations with their file.
	placed = regexp.MustCompile("((?:`[a-zA-Z]+`(?: and |, )?)+) in `([a-z][\\w./-]*\\.go)`")
	// dotted is a name of a package or a type, and one that it has.
	dotted = regexp.MustCompile(`(?:^|[^\w.])([A-Za-z]{2,}\.[A-Za-z]+)\b`)
)

// elsewhere are paths that look as if they were in the repository: files of other projects, and files that a command writes.
var elsewhere = []string{"bin/", "bench/out/", "testdata/*.txt", "internal/xds/clients/xdsclient/authority.go", "type.googleapis.com/"}

// documents returns the pages, by their paths in the repository.
func documents(t *testing.T) map[string]string {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil || len(pages) < 20 {
		t.Fatalf("docs/ has %d pages (%v)", len(pages), err)
	}
	all := map[string]string{}
	for _, page := range append([]string{"../README.md", "../ARCHITECTURE.md", "../CONTRIBUTING.md", "../bench/README.md", "../relay/testdata/README.md", "../relay/testdata/loss.md"}, pages...) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		all[filepath.ToSlash(strings.TrimPrefix(page, repository+string(filepath.Separator)))] = string(text)
	}
	return all
}

// quotedIn returns what stands between back quotes on a page, apart from blocks of code.
func quotedIn(page string) (all []string) {
	for _, m := range quoted.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		all = append(all, m[1])
	}
	return all
}

func TestPagesNameFilesThatExist(t *testing.T) {
	exists := func(name string) bool {
		found, err := filepath.Glob(filepath.Join(repository, name))
		return err == nil && len(found) > 0
	}
	for page, text := range documents(t) {
		for _, name := range quotedIn(text) {
			if !pathShaped.MatchString(name) || slices.ContainsFunc(elsewhere, func(prefix string) bool { return strings.HasPrefix(name, prefix) }) {
				continue
			}
			// Without the form of a file, x/y may be an example. It is ours if its folder is.
			folder, _, _ := strings.Cut(name, "/")
			if (fileShaped.MatchString(name) || exists(folder)) && !exists(name) {
				t.Errorf("%s names %s, which does not exist", page, name)
			}
		}
	}
}

// The comments of packages name files of their package.
func TestPackageCommentsNameFilesThatExist(t *testing.T) {
	var comments []string
	for _, folder := range []string{"*", "*/*"} {
		found, err := filepath.Glob(filepath.Join(repository, folder, "doc.go"))
		if err != nil {
			t.Fatal(err)
		}
		comments = append(comments, found...)
	}
	if len(comments) < 25 {
		t.Fatalf("%d packages have a doc.go", len(comments))
	}
	for _, comment := range comments {
		text, err := os.ReadFile(comment)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range regexp.MustCompile(`[\w/]*\w\.go\b`).FindAllString(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(comment), name)); err != nil {
				t.Errorf("%s names %s, which does not exist", comment, name)
			}
		}
	}
}

func TestLinksOfPagesLeadToSections(t *testing.T) {
	pages, anchors := documents(t), map[string]map[string]bool{}
	for page, text := range pages {
		anchors[page] = sections(text)
	}
	for page, text := range pages {
		for _, m := range linked.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
			target := page
			if m[1] != "" {
				target = path.Join(path.Dir(page), m[1])
			}
			if _, err := os.Stat(filepath.Join(repository, target)); err != nil {
				t.Errorf("%s has a link to %s, which does not exist", page, target)
			} else if m[2] != "" && !anchors[target][m[2]] {
				t.Errorf("%s has a link to the section %s of %s, which does not exist", page, m[2], target)
			}
		}
	}
}

// sections returns the anchors of a page, as GitHub makes them of headings.
func sections(page string) map[string]bool {
	all := map[string]bool{}
	for _, m := range anchor.FindAllStringSubmatch(page, -1) {
		all[m[1]] = true
	}
	for _, m := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(page, ""), -1) {
		slug := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		all[strings.ReplaceAll(slug, " ", "-")] = true
	}
	return all
}

func TestPagesNameKeysThatExist(t *testing.T) {
	keys := namedKeys(t)
	for page, text := range documents(t) {
		for _, name := range quotedIn(text) {
			first, _, _ := strings.Cut(strings.ReplaceAll(name, "[]", ""), ".")
			// These are also variables of expressions, and fields of JSON.
			if slices.Contains([]string{"node", "match", "identity", "check"}, first) {
				continue
			}
			if keyShaped.MatchString(name) && !fileShaped.MatchString(name) && keys[first] && !keys[strings.ReplaceAll(name, "[]", "")] {
				t.Errorf("%s names %s, which is no key of the configuration", page, name)
			}
		}
	}
}

// namedKeys returns the keys of the configuration, and the values of the Helm chart: for a.b.c also b.c and c.
func namedKeys(t *testing.T) map[string]bool {
	t.Helper()
	named := map[string]bool{}
	add := func(key string) {
		for rest, more := strings.ReplaceAll(key, "[]", ""), true; more; _, rest, more = strings.Cut(rest, ".") {
			named[rest] = true
		}
	}
	for _, k := range allKeys(t) {
		add(k.path)
	}
	text, err := os.ReadFile(filepath.Join(repository, "deploy", "chart", "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	for name, value := range values {
		group, _ := value.(map[string]any)
		for key := range group {
			add(name + "." + key)
		}
	}
	return named
}

func TestArchitectureNamesWhatIsDeclared(t *testing.T) {
	declared, inFile := declarations(t)
	pages, keys := documents(t), namedKeys(t)
	helps := regexp.MustCompile(`^(bench|deploy|integration|internal/testplane|tools)/|test/`)
	for file := range inFile {
		if folder := path.Dir(file) + "/"; !helps.MatchString(folder) && !strings.Contains(pages["ARCHITECTURE.md"], "`"+folder+"`") {
			t.Errorf("ARCHITECTURE.md does not name %s", folder)
		}
	}
	_, recipes, _ := strings.Cut(pages["CONTRIBUTING.md"], "\n## Where to add things\n")
	pages["CONTRIBUTING.md"], _, _ = strings.Cut(recipes, "\n## ")
	for _, page := range []string{"ARCHITECTURE.md", "CONTRIBUTING.md", "docs/glossary.md"} {
		names := quotedIn(pages[page])
		for _, block := range fenced.FindAllString(pages[page], -1) {
			for _, m := range dotted.FindAllStringSubmatch(block, -1) {
				names = append(names, m[1])
			}
		}
		for _, name := range names {
			if nameShaped.MatchString(name) && !fileShaped.MatchString(name) && !declared[name] && !keys[name] {
				t.Errorf("%s names %s, which is not declared anywhere", page, name)
			}
		}
		for _, m := range placed.FindAllStringSubmatch(pages[page], -1) {
			for _, name := range quotedIn(m[1]) {
				if !inFile[m[2]][name] {
					t.Errorf("%s names %s in %s, which is not declared there", page, name, m[2])
				}
			}
		}
	}
}

// declarations returns what the packages declare: K, Key, cache.Key, Set.mu, cache.Set.mu. inFile has the first form, by file.
func declarations(t *testing.T) (all map[string]bool, inFile map[string]map[string]bool) {
	t.Helper()
	all, inFile = map[string]bool{}, map[string]map[string]bool{}
	err := filepath.WalkDir(repository, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return err
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		here := map[string]bool{}
		inFile[filepath.ToSlash(strings.TrimPrefix(file, repository+string(filepath.Separator)))] = here
		declare := func(names ...string) {
			here[names[len(names)-1]] = true
			all[strings.Join(names, ".")], all[f.Name.Name+"."+strings.Join(names, ".")] = true, true
		}
		all[f.Name.Name] = true
		for _, decl := range f.Decls {
			switch decl := decl.(type) {
			case *ast.FuncDecl:
				declare(decl.Name.Name)
				if decl.Recv != nil {
					declare(typeName(decl.Recv.List[0].Type), decl.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range decl.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						for _, name := range spec.Names {
							declare(name.Name)
						}
					case *ast.TypeSpec:
						declare(spec.Name.Name)
						for _, field := range membersOf(spec.Type) {
							declare(spec.Name.Name, field.Name)
						}
					}
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all, inFile
}

// typeName returns the name of a receiver's type.
func typeName(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.StarExpr:
		return typeName(x.X)
	case *ast.IndexExpr:
		return typeName(x.X)
	case *ast.IndexListExpr:
		return typeName(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}

// membersOf returns the fields of a struct, and the methods of an interface.
func membersOf(x ast.Expr) (names []*ast.Ident) {
	var fields *ast.FieldList
	switch x := x.(type) {
	case *ast.StructType:
		fields = x.Fields
	case *ast.InterfaceType:
		fields = x.Methods
	default:
		return nil
	}
	for _, field := range fields.List {
		names = append(names, field.Names...)
	}
	return names
}
