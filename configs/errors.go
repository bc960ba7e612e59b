package configs

// This file is the errors: one for each mistake, with its place and a hint.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/xds-relay/xds-relay/internal/fileerrors"
)

// Error is one mistake in a configuration. Its File is the name that the caller gave to Load or Parse,
// or the environment variable or flag whose value is wrong.
type Error = fileerrors.Error

// Errors are all mistakes in a configuration, in the order of its lines.
type Errors = fileerrors.List

// inOrder sorts errs by their places, and returns them as an error, which is nil if there are none.
func inOrder(errs Errors) error {
	slices.SortStableFunc(errs, func(a, b Error) int { return cmp.Or(a.Line-b.Line, a.Column-b.Column) })
	return errs.OrNil()
}

// InOrder sorts errs by their places, and returns them as an error, which is nil if there are none.
func InOrder(errs Errors) error { return inOrder(errs) }

// source records where the keys of a configuration were written.
type source struct {
	at map[string]place // by path
}

// place is a place in a file, or the name of an environment variable or flag.
type place struct {
	file         string
	line, column int
}

func (p place) error(path string, err error) Error {
	return Error{File: p.file, Line: p.line, Column: p.column, Path: path, Err: err}
}

// errorf returns an Error for path. If the key is missing, its place is that of the map around
// it.
func (s source) errorf(path, format string, args ...any) Error {
	at := path
	for !s.has(at) && at != "" {
		at = parent(at)
	}
	return s.at[at].error(path, fmt.Errorf(format, args...))
}

// has reports whether the key at path was written.
func (s source) has(path string) bool {
	_, ok := s.at[path]
	return ok
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func parent(path string) string {
	return path[:max(strings.LastIndexAny(path, ".["), 0)]
}

// didYouMean returns a hint at the word that got is probably a misspelling of, or "".
func didYouMean(got string, words []string) string {
	if word := closest(got, words); word != "" {
		return fmt.Sprintf(" (did you mean %q?)", word)
	}
	return ""
}

// closest returns the word that is at most two typing errors away from got, or "". It ignores case, and
// hyphens in place of underscores.
func closest(got string, words []string) string {
	best, bestSlips := "", 3
	for _, word := range words {
		n := slips(strings.ToLower(strings.ReplaceAll(got, "-", "_")), strings.ToLower(strings.ReplaceAll(word, "-", "_")))
		if n < bestSlips && n < len(word)/2+1 {
			best, bestSlips = word, n
		}
	}
	return best
}

// slips returns the optimal string alignment distance of a and b: the number of letters to add, drop or
// change, and of neighbours to swap. If their lengths differ too much for a hint, it returns that
// difference.
func slips(a, b string) int {
	if d := max(len(a)-len(b), len(b)-len(a)); d > 2 {
		return d
	}
	var before []int
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next := make([]int, len(b)+1)
		next[0] = i
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			next[j] = min(row[j]+1, next[j-1]+1, row[j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, row = row, next
	}
	return row[len(b)]
}
