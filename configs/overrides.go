package configs

// This file is the values that override those of the file: environment variables and flags. viper holds
// them, and decides which of them wins.

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"github.com/spf13/viper"
	"go.yaml.in/yaml/v3"
)

// EnvPrefix begins the names of the relay's environment variables.
const EnvPrefix = "XDS_RELAY_"

// Overrides are values of single keys that override those of the file. Flags override environment
// variables. A nil Overrides has none.
type Overrides struct {
	layers  *viper.Viper
	origins map[string]string // by key: the variable or flag that gave it its value
	errs    Errors
}

// FromEnvironment returns overrides with the environment variables whose names begin with EnvPrefix. The
// rest of a name is the path of a key, or one of options, which the caller reads with Option. An empty
// variable counts as unset.
func FromEnvironment(options ...string) *Overrides {
	// No path contains this delimiter of viper's nested keys.
	o := &Overrides{layers: viper.NewWithOptions(viper.KeyDelimiter("\x00")), origins: map[string]string{}}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		rest, ours := strings.CutPrefix(name, EnvPrefix)
		if !ours || value == "" || setByKubernetes(name, value) {
			continue
		}
		path, known := strings.ToLower(rest), slices.Contains(options, strings.ToLower(rest))
		if !known {
			path, known = pathOfVariable(rest, configType, "")
		}
		if !known {
			o.errs = append(o.errs, Error{File: name, Err: unknownVariable(rest)})
			continue
		}
		_ = o.layers.BindEnv(path, name) // fails without a path only
		o.origins[path] = name
	}
	return o
}

// BindFlag gives a key the value of a flag, unless that is empty. The flag overrides the environment.
// key is a path, such as listeners[0].address, or the name of an option.
func (o *Overrides) BindFlag(key string, flag *pflag.Flag) {
	if flag.Value.String() == "" {
		return
	}
	if flag.Changed {
		o.origins[key] = "--" + flag.Name
	}
	_ = o.layers.BindPFlag(key, flag) // fails without a flag only
}

// Set gives a key the value of an assignment, KEY=VALUE. It overrides all other values.
func (o *Overrides) Set(assignment string) error {
	path, value, ok := strings.Cut(assignment, "=")
	if !ok {
		return fmt.Errorf("%q has no = (want KEY=VALUE, such as cache.linger=1m)", assignment)
	}
	if same, known := pathOfVariable(variableOf(path), configType, ""); !known || same != path {
		hint := didYouMean(path, scalarPaths(configType, ""))
		if hint == "" {
			hint = " (want one such as listeners[0].address)"
		}
		return fmt.Errorf("%q is not the path of a key that has one value%s", path, hint)
	}
	o.layers.Set(path, value)
	o.origins[path] = "--set"
	return nil
}

// Option returns the value of an option.
func (o *Overrides) Option(name string) string { return o.layers.GetString(name) }

// Origin returns the variable or flag that gave a key or an option its value.
func (o *Overrides) Origin(key string) string { return o.origins[key] }

// Keys returns the paths of the keys that have a value. They are sorted by index, so that apply can
// append entries to a list in order.
func (o *Overrides) Keys() []string {
	var paths []string
	for path := range o.origins {
		if _, known := pathOfVariable(variableOf(path), configType, ""); known {
			paths = append(paths, path)
		}
	}
	slices.SortFunc(paths, func(a, b string) int {
		return strings.Compare(index.ReplaceAllStringFunc(a, padded), index.ReplaceAllStringFunc(b, padded))
	})
	return paths
}

// apply puts the values into the tree, and records in s where they come from.
func (o *Overrides) apply(root *yaml.Node, s *shape) {
	if o == nil {
		return
	}
	s.errs = append(s.errs, o.errs...)
	if root.Kind != yaml.MappingNode {
		return
	}
	for _, path := range o.Keys() {
		g := graft{shape: s, origin: o.origins[path], value: o.layers.GetString(path)}
		g.into(root, configType, "", path)
	}
}

var index = regexp.MustCompile(`\d+`)

func padded(digits string) string { return fmt.Sprintf("%09s", digits) }

// graft is one value that is put into the tree.
type graft struct {
	*shape
	origin, value string
}

// into puts the value at the path rest below n, which is at path. If n should be a map or a list and is
// not, into does nothing: walk reports it.
func (g graft) into(n *yaml.Node, t reflect.Type, path, rest string) {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	after, isIndex := strings.CutPrefix(rest, "[")
	if isIndex && n.Kind == yaml.SequenceNode {
		digits, rest, _ := strings.Cut(after, "]")
		i, err := strconv.Atoi(digits)
		path = fmt.Sprintf("%s[%s]", path, digits)
		switch {
		case err != nil || i > len(n.Content):
			g.errs = append(g.errs, Error{File: g.origin, Path: path, Err: fmt.Errorf("is beyond the end of the list (want an index up to %d, which adds an entry)", len(n.Content))})
		case i == len(n.Content):
			n.Content = append(n.Content, g.node(t.Elem()))
			fallthrough
		default:
			g.below(&n.Content[i], t.Elem(), path, strings.TrimPrefix(rest, "."))
		}
		return
	}
	if isIndex || n.Kind != yaml.MappingNode {
		return
	}
	end := strings.IndexAny(rest+".", ".[")
	key, rest := rest[:end], strings.TrimPrefix(rest[end:], ".")
	field, _ := fieldOf(t, key)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			g.below(&n.Content[i+1], field.Type, join(path, key), rest)
			return
		}
	}
	n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, g.node(field.Type))
	g.below(&n.Content[len(n.Content)-1], field.Type, join(path, key), rest)
}

func (g graft) below(n **yaml.Node, t reflect.Type, path, rest string) {
	if rest == "" {
		*n = g.node(t)
		return
	}
	g.into(*n, t, path, rest)
}

// node returns a node for the type t: the value, or an empty map or list in which it will be put.
func (g graft) node(t reflect.Type) *yaml.Node {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: g.value}
	switch {
	case isMap(t):
		n = &yaml.Node{Kind: yaml.MappingNode}
	case t.Kind() == reflect.Slice:
		n = &yaml.Node{Kind: yaml.SequenceNode}
	case t.Kind() == reflect.String:
		n.Tag = "!!str"
	}
	g.origins[n] = g.origin
	return n
}

// pathOfVariable returns the path, which begins with path, of the key with a single value that a
// variable sets whose name ends in rest. A _ in rest ends a key or is part of one.
func pathOfVariable(rest string, t reflect.Type, path string) (found string, ok bool) {
	switch {
	case t == metadataType:
		return "", false
	case t.Kind() == reflect.Pointer:
		return pathOfVariable(rest, t.Elem(), path)
	case t.Kind() == reflect.Slice:
		digits, after, _ := strings.Cut(rest, "_")
		if !index.MatchString(digits) || index.FindString(digits) != digits || len(digits) > 4 {
			return "", false
		}
		return pathOfVariable(after, t.Elem(), path+"["+digits+"]")
	case !isMap(t):
		return path, rest == ""
	}
	for _, key := range keysOf(t) {
		after, cut := strings.CutPrefix(rest+"_", strings.ToUpper(key)+"_")
		if !cut {
			continue
		}
		field, _ := fieldOf(t, key)
		if found, ok = pathOfVariable(strings.TrimSuffix(after, "_"), field.Type, join(path, key)); ok {
			return found, true
		}
	}
	return "", false
}

// variableOf returns the name of the variable of a path, without the prefix.
func variableOf(path string) string {
	return strings.ToUpper(strings.NewReplacer("].", "_", "[", "_", "]", "", ".", "_").Replace(path))
}

// scalarPaths returns the paths of all keys that have a single value, with 0 for every index.
func scalarPaths(t reflect.Type, path string) (paths []string) {
	switch {
	case t == metadataType:
	case t.Kind() == reflect.Pointer:
		return scalarPaths(t.Elem(), path)
	case t.Kind() == reflect.Slice:
		return scalarPaths(t.Elem(), path+"[0]")
	case !isMap(t):
		return []string{path}
	default:
		for _, key := range keysOf(t) {
			field, _ := fieldOf(t, key)
			paths = append(paths, scalarPaths(field.Type, join(path, key))...)
		}
	}
	return paths
}

func unknownVariable(rest string) error {
	var names []string
	for _, path := range scalarPaths(configType, "") {
		names = append(names, EnvPrefix+variableOf(path))
	}
	word := closest(EnvPrefix+index.ReplaceAllString(rest, "0"), names)
	if word == "" {
		return fmt.Errorf("unknown variable (want %s and the path of a key that has one value, such as %sLISTENERS_0_ADDRESS)", EnvPrefix, EnvPrefix)
	}
	indices := index.FindAllString(rest, -1)
	word = index.ReplaceAllStringFunc(word, func(zero string) string {
		if len(indices) == 0 {
			return zero
		}
		first := indices[0]
		indices = indices[1:]
		return first
	})
	return fmt.Errorf("unknown variable (did you mean %s?)", word)
}

var kubernetes = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_(ADDR|PORT|PROTO))?$`)

// setByKubernetes reports whether a variable is one that Kubernetes sets for a Service whose name begins
// with xds-relay.
func setByKubernetes(name, value string) bool {
	return kubernetes.MatchString("_"+name) || strings.HasSuffix(name, "_PORT") && strings.Contains(value, "://")
}
