package collections

import (
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// TP1: "List collections with inlining". Lookups of an inline entry by its name, #entry.

// entryName returns the name of an inline entry.
func entryName(collection, entry string) string { return collection + "#entry=" + entry }

// lookUpEntry evaluates a URL with an entry directive.
func (e *evaluation) lookUpEntry(u urn.URL, entry, typeURL string, passed []string) result {
	name := entryName(u.Key().Name, entry)
	asked := xdstype.Message(typeURL)
	if u.Key().Type != asked+"Collection" {
		return failure(codes.InvalidArgument, "%s is an entry of a %s, want one of a %sCollection", name, u.Key().Type, asked)
	}
	if at := slices.Index(passed, name); at >= 0 {
		return e.loopError(passed[at:])
	}
	is := e.lookUpName(u.Key(), xdstype.Prefix+u.Key().Type, passed)
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
	case found.locator != urn.URL{} && e.start.passRedirects:
		is.Resource = is.leaf.inlineRedirect(found)
		is.origin = entryName(is.origin, entry)
		return is
	case found.locator != urn.URL{}:
		return e.followRedirect(name, &is, found.locator, typeURL, passed)
	case xdstype.Message(found.typeURL) != asked:
		return failure(codes.InvalidArgument, "%s has type %s, want %s", name, xdstype.Message(found.typeURL), asked)
	}
	is.Resource = is.leaf.inline(found)
	is.origin = entryName(is.origin, entry)
	return is
}

// noEntry returns the result for a list collection without the entry.
func (r *result) noEntry(entry string) result {
	is := *r
	is.State = cache.State{Status: cache.Absent, Err: &cache.Error{
		Code: codes.NotFound, Message: "the list collection " + r.origin + " has no entry " + entry,
	}}
	if err := r.list().err; err != nil {
		// The entry may be in the unreadable part.
		is.State = cache.State{Status: cache.Failed, Err: err}
	}
	return is
}
