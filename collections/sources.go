package collections

import (
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// Opening the source of a collection's URL.

// newCollectionSource returns the source of a URL of a glob or list collection. path are
// the names and URLs on the way to the URL.
func (s *setContext) newCollectionSource(to *input, u urn.URL, path []string) source {
	if alt, ok := u.Alt(); ok {
		return newAltSource(s, to, u, alt, path)
	}
	return s.newPrimarySource(to, u, path)
}

// newPrimarySource is like newCollectionSource, but ignores the alternative.
func (s *setContext) newPrimarySource(to *input, u urn.URL, path []string) source {
	short := xdstype.Message(s.typeURL)
	_, entry := u.Entry()
	switch key := u.Key(); {
	case len(path) > s.depth:
		return failedSource{err: failure(codes.FailedPrecondition, "more than %d collections, redirects and alternatives in a row: %s", s.depth, joinPath(append(path, key.Name))).Err}
	case s.collections == maxCollections:
		return failedSource{err: failure(codes.ResourceExhausted, "more than %d collections in one", maxCollections).Err}
	case key.Glob && key.Type == short && !entry:
		leaf, err := s.names.Key(s.typeURL, key.Name)
		if err != nil {
			return failedSource{err: asError(err), unreachable: true} // no source, as in lookUpName
		}
		leaf.Scope.Params, leaf.Scope.New = s.params, s.side.has(leaf.Scope)
		return newGlobSource(s, to, leaf)
	case !key.Glob && key.Type == short+"Collection" && !entry:
		return newListSource(s, to, u, path)
	default:
		return failedSource{err: failure(codes.InvalidArgument, "%s has type %s, want a collection of %s", u, key.Type, short).Err}
	}
}

// failedSource is a source that cannot be opened.
type failedSource struct {
	err         *cache.Error
	unreachable bool // as in sourceState
}

func (f failedSource) state() sourceState {
	return sourceState{status: cache.Failed, err: f.err, unreachable: f.unreachable}
}

func (failedSource) keys(func(string)) {}

func (failedSource) refresh() {}

func (failedSource) refuse(string, uint32) {}

func (failedSource) close() {}

// newSetContext returns the common data of a derived topic's sources.
func (r *Resolver) newSetContext(k cache.Key) *setContext {
	log, lines := r.log.With("name", k.Name, "type_url", k.TypeURL), &r.sets.logs
	if _, isView := r.sets.views[k.Scope.Derived]; isView {
		log, lines = log.With("view", k.Scope.Derived), &setLogs{}
	}
	return &setContext{Resolver: r, log: log, logs: lines, passRedirects: k.Scope.Derived == cache.Passed, typeURL: k.TypeURL, params: k.Scope.Params, side: sideOf(k)}
}

// reportBadEntry logs and counts a list entry that cannot be used.
func (s *setContext) reportBadEntry(collection string, err *cache.Error) {
	s.sets.failures.Add(1)
	if log, ok := s.logs.entries.Next(s.log); ok {
		log.Warn("bad entry in a list collection", "collection", collection, "error", err.Error())
	}
}
