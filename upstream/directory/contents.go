package directory

// The contents of a directory: reading its files, keeping the last good resources of bad
// files, and merging all files.

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cespare/xxhash/v2"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/taster"
)

// folder is the directory to read.
type folder struct {
	fsys      fs.FS
	path      string // for errors; "" if the files are not on a disk
	authority string
	tally     *taster.Tally // nil as in upstream.Options
}

// contents are the contents of a folder at one reading. They are immutable.
type contents struct {
	files []*file // by name
	// errs are the errors of the folder as a whole. With errors, files are those
	// of the reading before.
	errs Errors
	read bool // the folder could be read, now or before
}

// file has the contents of one file.
type file struct {
	name  string
	path  string // for errors
	hash  uint64
	items []item // of the newest good content
	good  bool   // there was good content
	errs  Errors // of the newest content
	// ignored are the parts of the newest content that are ignored, because they are not known.
	ignored Errors
}

// Load reads a directory once, as a [Source] does. The resources are in the
// order of the files' names and of the files themselves. The error is an
// [Errors] with all errors; the resources of good files are returned with it. ignored has the parts of
// the files that are not known. tally is as in New.
func Load(dir, authority string, tally *taster.Tally) (_ []*cache.Resource, ignored Errors, _ error) {
	c := folder{fsys: os.DirFS(dir), path: dir, authority: authority, tally: tally}.read(&contents{})
	items, errs := c.merge()
	resources := make([]*cache.Resource, len(items))
	for i, it := range items {
		resources[i] = it.resource
	}
	return resources, c.ignored(), errs.OrNil()
}

// read reads all files. It does not parse unchanged files again.
func (f folder) read(before *contents) *contents {
	listed, err := f.list()
	if err != nil {
		return &contents{files: before.files, read: before.read, errs: Errors{f.error(err)}}
	}
	// If the directory is swapped during the reading, the contents could be half old and half
	// new. So it is read until the listing does not change. A directory that always changes is
	// taken as it is: it will be read again anyway.
	const attempts = 5
	for range attempts {
		c := f.readFiles(listed, before)
		again, err := f.list()
		if err != nil {
			return &contents{files: before.files, read: before.read, errs: Errors{f.error(err)}}
		}
		if slices.EqualFunc(listed, again, listing.same) {
			return c
		}
		listed = again
	}
	return f.readFiles(listed, before)
}

// listing is a file as it is listed.
type listing struct {
	name string
	info fs.FileInfo // nil if err is set
	err  error
}

func (l listing) same(o listing) bool {
	if l.name != o.name || l.err != nil || o.err != nil {
		return l.name == o.name && l.err != nil && o.err != nil
	}
	// os.SameFile does not support files that are not on a disk.
	sameFile := l.info.Sys() == nil || os.SameFile(l.info, o.info)
	return sameFile && l.info.Size() == o.info.Size() && l.info.ModTime().Equal(o.info.ModTime())
}

func (f folder) list() ([]listing, error) {
	entries, err := fs.ReadDir(f.fsys, ".")
	if err != nil {
		return nil, err
	}
	var files []listing
	for _, e := range entries {
		if isResourceFile(e.Name()) {
			l := listing{name: e.Name()}
			l.info, l.err = fs.Stat(f.fsys, e.Name()) // follows symlinks
			files = append(files, l)
		}
	}
	return files, nil
}

func (f folder) readFiles(listed []listing, before *contents) *contents {
	c := &contents{read: true}
	for _, l := range listed {
		i, known := slices.BinarySearchFunc(before.files, l.name, func(old *file, name string) int {
			return strings.Compare(old.name, name)
		})
		old := &file{}
		if known {
			old = before.files[i]
		}
		c.files = append(c.files, f.readFile(l, old))
	}
	return c
}

func (f folder) readFile(l listing, old *file) *file {
	now := &file{name: l.name, path: filepath.Join(f.path, l.name), items: old.items, good: old.good}
	data, err := f.bytes(l)
	if err != nil {
		now.errs = Errors{{File: now.path, Err: err}}
		return now
	}
	now.hash = xxhash.Sum64(data)
	if old.hash == now.hash {
		return old
	}
	r := parse(f.authority, now.path, data, f.tally)
	now.ignored = r.ignored
	if len(r.errs) > 0 {
		now.errs = r.errs
		return now
	}
	now.items, now.good = r.items, true
	return now
}

func (f folder) bytes(l listing) ([]byte, error) {
	if l.err != nil {
		return nil, plainError(l.err)
	}
	if !l.info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	data, err := fs.ReadFile(f.fsys, l.name)
	if err != nil {
		return nil, plainError(err)
	}
	return data, nil
}

// ignored returns the parts of all files that are ignored.
func (c *contents) ignored() (all Errors) {
	for _, f := range c.files {
		all = append(all, f.ignored...)
	}
	return all
}

// merge merges the files' resources. If a resource is in two files, merge takes the first, and adds
// an error for the other.
func (c *contents) merge() ([]item, Errors) {
	errs := slices.Clone(c.errs)
	var all []item
	places := map[id]place{}
	for _, f := range c.files {
		errs = append(errs, f.errs...)
		for _, it := range f.items {
			first, taken := places[it.id]
			if taken {
				errs = append(errs, Error{File: f.path, Line: it.line, Err: fmt.Errorf(
					"%s is in %s already, which is the one that is served",
					describe(it.typeURL, it.resource.Name()), first)})
				continue
			}
			places[it.id] = place{f.path, it.line}
			it.file = f.path
			all = append(all, it)
		}
	}
	return all, errs
}

// place is the place of a resource in the files.
type place struct {
	path string
	line int // 0 if there are no lines
}

func (p place) String() string {
	if p.line == 0 {
		return p.path
	}
	return fmt.Sprintf("%s:%d", p.path, p.line)
}

// error returns an error of the folder as a whole.
func (f folder) error(err error) Error {
	if errors.Is(err, fs.ErrNotExist) {
		err = errors.New("no such directory")
	} else {
		err = plainError(err)
	}
	return Error{File: cmp.Or(f.path, "."), Err: err}
}

// plainError returns err without the operation and the path, which the caller adds itself.
func plainError(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return p.Err
	}
	return err
}
