package collections

import (
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// TP1: "List collections with inlining". An inline entry by its name, with #entry.

// entryName is the name of an inline entry.
func entryName(collection, entry string) string { return collection + "#entry=" + entry }

// entry evaluates a URL that names an inline entry of a list collection.
func (e *evaluation) entry(u urn.URL, entry, typeURL string, passed []string) result {
	name := entryName(u.Key().Name, entry)
	asked := xdstype.Message(typeURL)
	if u.Key().Type != asked+"Collection" {
		return failure(codes.InvalidArgument, "%s is in a %s, where an entry of a %sCollection is wanted", name, u.Key().Type, asked)
	}
	if at := slices.Index(passed, name); at >= 0 {
		return e.loop(passed[at:])
	}
	is := e.name(u.Key(), xdstype.Prefix+u.Key().Type, passed)
	if is.Status != cache.Present {
		return is
	}
	found := is.list().entry(entry)
	switch {
	case found == nil:
		return is.noEntry(entry)
	case found.err != nil:
		is.State = cache.State{Status: cache.Failed, Err: found.err}
		return is
	case found.locator != urn.URL{} && e.start.passes:
		is.Resource = is.leaf.inlineRedirect(found)
		is.origin = entryName(is.origin, entry)
		return is
	case found.locator != urn.URL{}:
		return e.redirect(name, &is, found.locator, typeURL, passed)
	case xdstype.Message(found.typeURL) != asked:
		return failure(codes.InvalidArgument, "%s is of type %s, where %s is wanted", name, xdstype.Message(found.typeURL), asked)
	}
	is.Resource = is.leaf.inline(found)
	is.origin = entryName(is.origin, entry)
	return is
}

// noEntry is the result of a list collection that does not have the entry.
func (r *result) noEntry(entry string) result {
	is := *r
	is.State = cache.State{Status: cache.Absent, Err: &cache.Error{
		Code: codes.NotFound, Message: "the list collection " + r.origin + " has no entry " + entry,
	}}
	if err := r.list().err; err != nil {
		// It may be in what cannot be read.
		is.State = cache.State{Status: cache.Failed, Err: err}
	}
	return is
}
