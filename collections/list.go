package collections

import (
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

// TP1: "List".

// entry evaluates a URL that names an inline entry of a list collection.
func (e *evaluation) entry(u urn.URL, entry, typeURL string, passed []string) result {
	if want := shortType(typeURL) + "Collection"; u.Key().Type != want {
		return failure(codes.InvalidArgument, "%s is of type %s, where an entry of %s is wanted", u, u.Key().Type, want)
	}
	is := e.name(u.Key(), typePrefix+u.Key().Type, passed)
	if is.Status != cache.Present {
		return is
	}
	// To be built: the entry of that name in the collection.
	return is
}

const typePrefix = "type.googleapis.com/"
