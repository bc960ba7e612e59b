package directory

// Files with the lines of their resources, for linting.

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/xds-relay/xds-relay/internal/envoyjson"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Written is a resource of a file, as written there. Redirects are left out.
type Written struct {
	TypeURL, Name string
	Value         []byte
	File          string
	line          int
	content       *envoyjson.Value // nil if the format has no lines
}

// Read reads files, and all files of directories, as a [Source] does. Their names may be of
// any authority, and resources that clients would reject are not refused. The error is an
// [Errors] with all errors; the resources that could be read are returned with it. ignored has the parts of the files
// that are not known, which Envoy and the relay ignore.
func Read(paths ...string) (all []Written, ignored Errors, err error) {
	c := &contents{}
	for _, p := range paths {
		files, errs := filesOf(p)
		c.errs = append(c.errs, errs...)
		for _, name := range files {
			c.files = append(c.files, readWritten(name))
		}
	}
	items, errs := c.merge()
	for _, it := range items {
		if it.resource.TypeURL() == xdstype.Locator {
			continue
		}
		all = append(all, Written{
			TypeURL: it.resource.TypeURL(), Name: it.resource.Name(), Value: it.resource.Value(),
			File: it.file, line: it.line, content: it.content,
		})
	}
	return all, c.ignored(), errs.OrNil()
}

// filesOf returns the file of a path, or all resource files if the path is a directory.
func filesOf(at string) (files []string, errs Errors) {
	info, err := os.Stat(at)
	if err != nil {
		return nil, Errors{{File: at, Err: plainError(err)}}
	}
	if !info.IsDir() {
		if formats[path.Ext(at)] == nil {
			return nil, Errors{{File: at, Err: errors.New("no format of resources (want .yaml, .yml, .json, .textpb, .txtpb, .pbtxt or .pb)")}}
		}
		return []string{at}, nil
	}
	listed, err := folder{fsys: os.DirFS(at), path: at}.list()
	if err != nil {
		return nil, Errors{{File: at, Err: plainError(err)}}
	}
	for _, l := range listed {
		files = append(files, filepath.Join(at, l.name))
	}
	return files, nil
}

// readWritten reads the good resources of a file, with their lines.
func readWritten(name string) *file {
	f := &file{name: name, path: name}
	data, err := os.ReadFile(name)
	if err != nil {
		f.errs = Errors{{File: name, Err: plainError(err)}}
		return f
	}
	r := &reader{authority: anyAuthority, name: name, data: data, tally: taster.NewTally(taster.Off, nil), keeps: true}
	r.read()
	f.items, f.errs, f.ignored = r.items, r.errs, r.ignored
	return f
}

// Line returns the line of a field of the resource, by the field's path. If the file does not have all of
// the path, Line returns the line of the last part that it has. It is 0 if the format has no lines.
func (w Written) Line(field string) int {
	if w.content == nil {
		return w.line
	}
	at := w.content
	line := max(w.line, at.Line)
	for step := range steps(field) {
		next, on := follow(at, step)
		if next == nil {
			break
		}
		at, line = next, on
	}
	return line
}

// steps iterates over the steps of a path: the names of fields, and in brackets the index of a
// list's element, or the key of a map, which may be quoted.
func steps(field string) func(func(string) bool) {
	return func(yield func(string) bool) {
		for field != "" {
			end := strings.IndexAny(field, ".[")
			if field[0] == '[' {
				if end = strings.IndexByte(field, ']') + 1; strings.HasPrefix(field, `["`) {
					end = strings.Index(field, `"]`) + len(`"]`)
				}
				if end < len("[]") {
					return
				}
			} else if end < 0 {
				end = len(field)
			}
			if !yield(field[:end]) {
				return
			}
			field = strings.TrimPrefix(field[end:], ".")
		}
	}
}

// follow returns the value to which one step of a path leads, and its line; nil if the file does not have
// it.
func follow(v *envoyjson.Value, step string) (next *envoyjson.Value, line int) {
	if inner, ok := strings.CutPrefix(step, "["); ok {
		inner = strings.TrimSuffix(inner, "]")
		if v.Kind == envoyjson.List {
			if i, err := strconv.Atoi(inner); err == nil && i >= 0 && i < len(v.Items) {
				return v.Items[i], v.Items[i].Line
			}
			return nil, 0
		}
		if key, err := strconv.Unquote(inner); err == nil {
			inner = key
		}
		return named(v, func(name string) bool { return name == inner })
	}
	same := func(name string) bool {
		return strings.EqualFold(strings.ReplaceAll(name, "_", ""), strings.ReplaceAll(step, "_", ""))
	}
	if next, line = named(v, same); next != nil {
		return next, line
	}
	// The path may leave out the field around an extension's configuration.
	for _, around := range []string{"typed_config", "typedConfig", "api_listener", "apiListener"} {
		if config := v.Field(around); config != nil {
			if next, line = named(config, same); next != nil {
				return next, line
			}
		}
	}
	return nil, 0
}

// named returns the first field with such a name, and its line.
func named(v *envoyjson.Value, is func(string) bool) (*envoyjson.Value, int) {
	i := slices.IndexFunc(v.Fields, func(f envoyjson.Field) bool { return is(f.Name) })
	if i < 0 {
		return nil, 0
	}
	return v.Fields[i].Value, v.Fields[i].Line
}
