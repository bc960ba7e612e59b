package configs

// This file is the keys of `views`, and their checks.

import (
	"fmt"
	"strings"

	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// View gives clients a wildcard, a glob or a list collection that is the union of
// collections. Its names are in canonical spelling.
type View struct {
	// What clients request: `wildcard: true` and a type, or `glob`, or `list`.
	Match ViewMatch `yaml:"match" required:"true"`
	// Which clients the view is for: an expression as in `old_style_names`.
	When string `yaml:"when" absent:"all clients"`
	// URLs of list collections and globs of the view's type, of any of `authorities`, with or without
	// alternatives (#alt). If two members have the same name, the view has that of the first collection.
	Collections []string `yaml:"collections" required:"true"`
	// Whether the relay renames members into the directory of `glob`, as Envoy needs: it keeps
	// the last segment of their names, and changes the name inside the resource too.
	Rename bool `yaml:"rename" default:"false"`

	when program
}

// ViewMatch is what clients request: one of a Type's Wildcard, a Glob and a List.
type ViewMatch struct {
	// The type of the wildcard: {types}, or a type URL.
	Type Type `yaml:"type" absent:"the type in the name of the glob or list"`
	// Whether the view is for clients that request all resources of `type`.
	Wildcard bool `yaml:"wildcard" default:"false"`
	// The name of a glob collection. Its authority need not be one of `authorities`.
	Glob string `yaml:"glob" absent:"none"`
	// The name of a list collection. Its authority need not be one of `authorities`.
	List string `yaml:"list" absent:"none"`
}

// Type is a type URL. In YAML it may be a short name, such as cluster.
type Type string

// UnmarshalText sets t from its notation.
func (t *Type) UnmarshalText(text []byte) error {
	url, err := xdstype.Parse(string(text))
	*t = Type(url)
	return err
}

const collection = "Collection"

// ResourceType returns the type URL of the view's members.
func (v *View) ResourceType() string {
	switch {
	case v.Match.Glob != "":
		key, _ := urn.KeyOf(v.Match.Glob)
		return xdstype.Prefix + key.Type
	case v.Match.List != "":
		key, _ := urn.KeyOf(v.Match.List)
		return xdstype.Prefix + strings.TrimSuffix(key.Type, collection)
	}
	return string(v.Match.Type)
}

// Always reports whether v is for every client.
func (v *View) Always() bool { return always(v.When) }

// Matches reports whether v is for a client. An error means that the relay cannot evaluate the expression.
func (v *View) Matches(c Client) (bool, error) {
	if v.when == nil {
		return true, nil
	}
	return eval[bool](v.when, c, v.ResourceType())
}

// views checks the views, and replaces their names by the canonical spelling.
func (k *checker) views(c *Config) {
	type match struct{ what, when string }
	first := map[match]int{} // the first view for each match
	for i := range c.Views {
		v := &c.Views[i]
		path := fmt.Sprintf("views[%d]", i)
		if k.isUnusable(path) {
			continue
		}
		var err error
		if v.when, err = compileBool(v.When); err != nil {
			k.fail(path+".when", "%w", err)
		}
		what := k.viewMatch(path, v)
		k.viewCollections(path+".collections", v, what != "", c.Authorities)
		if v.Rename && v.Match.Glob == "" && what != "" {
			k.fail(path+".rename", "is for views of a glob, which give members a directory (want no such key)")
		}
		if what == "" || k.isUnusable(path+".when") {
			continue
		}
		when := v.When
		if v.Always() {
			when = ""
		}
		if before, taken := first[match{what, ""}]; taken {
			k.fail(path, "can never match, because views[%d] matches the same for every client (want that view later)", before)
		} else if before, taken := first[match{what, when}]; taken {
			k.fail(path+".when", "can never match, because views[%d] matches the same under the same condition (want another one)", before)
		} else {
			first[match{what, when}] = i
		}
	}
}

// viewMatch checks what a view matches, and returns it in a canonical form; empty if it is
// wrong.
func (k *checker) viewMatch(path string, v *View) (what string) {
	path += ".match"
	if !k.has(path) {
		k.fail(path, "missing (want a type and wildcard: true, or a glob, or a list)")
		return ""
	}
	if k.isUnusable(path) {
		return ""
	}
	var given []string
	for _, key := range []string{"wildcard", "glob", "list"} {
		at := path + "." + key
		if k.unusable[at] {
			return ""
		}
		if k.has(at) {
			given = append(given, key)
		}
	}
	switch {
	case len(given) == 0:
		k.fail(path, "does not say what clients ask for (want a type and wildcard: true, or a glob, or a list)")
		return ""
	case len(given) > 1:
		k.fail(path, "has %s (want one of them)", strings.Join(given, " and "))
		return ""
	case given[0] == "wildcard":
		return k.wildcardMatch(path, v)
	}
	at := path + "." + given[0]
	if k.has(path + ".type") {
		k.fail(path+".type", "goes with wildcard (want no such key: the %s has its type in its name)", given[0])
	}
	name, want := &v.Match.Glob, "the name of a glob collection, xdstp://authority/type/.../*"
	if given[0] == "list" {
		name, want = &v.Match.List, "the name of a list collection, xdstp://authority/...Collection/id"
	}
	key, err := urn.KeyOf(*name)
	switch {
	case err != nil:
		k.fail(at, "%w", err)
		return ""
	case key.Type == "", key.Glob != (given[0] == "glob"), given[0] == "list" && !isList(key):
		k.fail(at, "%q is not %s", *name, want)
		return ""
	}
	*name = key.Name
	return key.Name
}

func (k *checker) wildcardMatch(path string, v *View) (what string) {
	if !v.Match.Wildcard {
		k.fail(path+".wildcard", "is false (want true, or no such key and a glob or a list)")
		return ""
	}
	if !k.has(path + ".type") {
		k.fail(path+".type", "missing (want the type of the wildcard: one of %s, or a type URL)", xdstype.Words())
		return ""
	}
	if k.isUnusable(path + ".type") {
		return ""
	}
	return "* " + string(v.Match.Type)
}

// isList reports whether a name is that of a list collection. TP1: "List".
func isList(key urn.Key) bool {
	return !key.Glob && strings.HasSuffix(key.Type, collection) && key.Type != collection
}

// viewCollections checks the collections of a view. typed says that the view has a valid type.
func (k *checker) viewCollections(path string, v *View, typed bool, as []Authority) {
	if len(v.Collections) == 0 && !k.isUnusable(path) {
		k.fail(path, "missing (want at least one URL of a list or a glob collection)")
	}
	seen := map[string]int{}
	for i, text := range v.Collections {
		at := fmt.Sprintf("%s[%d]", path, i)
		if k.isUnusable(at) {
			continue
		}
		if !urn.IsXdstp(text) {
			k.fail(at, "%q is not an xdstp URL (want one of a list or a glob collection)", text)
			continue
		}
		url, err := urn.ParseURL(text)
		if err != nil {
			k.fail(at, "%w", err)
			continue
		}
		v.Collections[i] = url.String()
		if first, taken := seen[url.String()]; taken {
			k.fail(at, "%q is already %s[%d] (want each once)", text, path, first)
			continue
		}
		seen[url.String()] = i
		for more := true; more; url, more = url.Alt() {
			k.viewCollection(at, url, v, typed, as)
		}
	}
}

// viewCollection checks one URL, without its alternative.
func (k *checker) viewCollection(path string, url urn.URL, v *View, typed bool, as []Authority) {
	key := url.Key()
	if _, entry := url.Entry(); entry || !key.Glob && !isList(key) {
		k.fail(path, "%q is one resource (want a glob, which ends in /*, or a list, whose type ends in %s)", url, collection)
		return
	}
	if want := xdstype.Message(v.ResourceType()); typed {
		if got := key.Type; key.Glob && got != want || !key.Glob && got != want+collection {
			k.fail(path, "%q is of type %s (want %s for a glob or %s for a list, as in match)", key.Name, got, want, want+collection)
		}
	}
	k.ruleAuthority(path, key.Authority, as)
}
