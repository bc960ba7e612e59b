package collections

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/loglines"
	"github.com/xds-relay/xds-relay/urn"
	"github.com/xds-relay/xds-relay/xdstype"
)

// What derived sets are made of. A source is where members come from: a glob, a list
// collection, a URL with an alternative, or a single member. Unlike a follow it is not
// evaluated as a whole, for it may have 100,000 members: it offers each to who made
// it, and offers anew what has changed.

// source is a part of a union. Its constructor is given the [part], to which it offers
// its members and tells when its condition is another.
type source interface {
	condition() condition
	// offered yields the keys of all members that it has offered. There may be some that
	// it has not, or more than once.
	offered(yield func(key string))
	// refresh has what is not for newcomers asked for anew.
	refresh()
	close()
}

// condition is what is known of a source as a whole.
type condition struct {
	// status is Requested until every member is known, or cannot be had. Once it is
	// Present or Absent it stays so: what cannot be had any more stays as it was.
	status cache.Status
	err    *cache.Error // when Failed
	// partial: when it became Present, or Absent, a part of it could not be had, and
	// has not come since.
	partial bool
	// As in result.
	down, shaky bool
}

func (o condition) known() bool { return o.status == cache.Present || o.status == cache.Absent }

// offer is a member as one source has it. The zero offer is none.
type offer struct {
	// resource is what it is, or was last.
	resource *cache.Resource
	// err is why it is not to be had, or not its newest state.
	err *cache.Error
}

// claim is the offer of a member that is asked for and not answered yet. Until it is,
// nobody says that there is no such member: who has one of that name keeps it.
var claim = offer{err: &cache.Error{Code: codes.Unavailable, Message: "not known yet"}}

// sink is told of the members of a union: by a source that has one, or a node.
type sink interface {
	// elected says that what counts under a key is another now. again: it is, or it
	// is the same and alive (xDS: "TTL"), or asked for anew.
	elected(key string, was, is offer, again bool)
	// turned says that the condition may be another.
	turned()
}

// setting is what the sources of a node have in common.
type setting struct {
	*Resolver
	log     *slog.Logger // that says of which node it is
	typeURL string       // of the members
	params  string       // as in cache.Scope
	// renameTo is the glob by which members are named, empty if they keep their
	// names.
	renameTo string
	// passes: members that are redirects are offered as they are.
	passes bool
	// listing has members offered as entries of a list collection. They are not
	// followed then.
	listing bool
	// collections is how many are expanded, unanswered how many were asked for and have
	// not been answered yet: each may turn out to have any name.
	collections, unanswered int
	// entries is how many entries of lists are members, or collections; todos how many
	// steps and follows are to be done.
	entries, todos int
	// withholds: the node has something to tell as soon as the setting is not busy.
	withholds bool
	node      node
	line      line
	lines     *setLines
}

// setLines bound what is logged of a view, or of all sets that are none: who writes list
// collections can have any number of entries in them that are none or cannot be had, and
// clients can make up globs with alternatives.
type setLines struct{ entries, collections, clashes loglines.Lines }

// badEntry tells of an entry of a list that is none.
func (s *setting) badEntry(collection string, err *cache.Error) {
	s.sets.failures.Add(1)
	if log, ok := s.lines.entries.Next(s.log); ok {
		log.Warn("bad entry in a list collection", "collection", collection, "error", err.Error())
	}
}

// foreign says why a resource in what an authority gives cannot have that name, nil if it
// can: what it says of other authorities is not believed, unless these are served from the
// same place.
func (r *Resolver) foreign(authority, name string) error {
	of, ok := urn.AuthorityOf(name)
	if !ok || of == authority || r.speaks != nil && r.speaks(authority, of) {
		return nil
	}
	return fmt.Errorf("its resource is %q, of authority %q: what authority %q says of that is not believed", loglines.Clip(name), loglines.Clip(of), authority)
}

// question is that for a collection, until it is answered; or for all members of an
// alternative, until they are. It ends too when it is not asked any more.
type question struct{ of *setting }

func (s *setting) ask() question {
	s.unanswered++
	return question{s}
}

// over may be called more than once.
func (q *question) over() {
	s := q.of
	if q.of = nil; s == nil {
		return
	}
	if s.unanswered--; !s.busy() && s.withholds {
		s.changed[s.node] = struct{}{}
	}
}

// maxCollections bounds how many collections are expanded for one set: those who
// write list collections could otherwise have any number of them, each in each.
const maxCollections = 1000

// maxEntriesOfSet bounds how many entries of lists are expanded for one set: members, and
// collections.
const maxEntriesOfSet = 200_000

// member returns the key of a member, and its name as clients are to see it.
func (s *setting) member(name string) (key, spelled string) {
	name = strings.Clone(name) // it may be a part of a resource
	key = canonical(name)
	if s.renameTo != "" {
		key = urn.MemberOf(s.renameTo, key)
		return key, key
	}
	return key, name
}

// canonical returns what a name is kept under. A bad xdstp name stays as it is.
func canonical(name string) string {
	if key, err := urn.KeyOf(name); err == nil {
		return key.Name
	}
	return name
}

// collection makes the source of a URL of a glob or list collection. passed are the
// names and URLs on the way to it.
func (s *setting) collection(to *part, u urn.URL, passed []string) source {
	if alt, ok := u.Alt(); ok {
		return newChoiceSource(s, to, u, alt, passed)
	}
	return s.primary(to, u, passed)
}

// primary is collection without regard to an alternative.
func (s *setting) primary(to *part, u urn.URL, passed []string) source {
	short := xdstype.Message(s.typeURL)
	_, entry := u.Entry()
	switch key := u.Key(); {
	case len(passed) > s.depth:
		return failedSource{err: failure(codes.FailedPrecondition, "more than %d collections, redirects and alternatives in a row: %s", s.depth, chain(append(passed, key.Name))).Err}
	case s.collections == maxCollections:
		return failedSource{err: failure(codes.ResourceExhausted, "more than %d collections in one", maxCollections).Err}
	case key.Glob && key.Type == short && !entry:
		leaf, err := s.names.Key(s.typeURL, key.Name)
		if err != nil {
			return failedSource{err: asError(err), down: true} // it can never be had, as with names
		}
		leaf.Scope.Params = s.params
		return newGlobSource(s, to, leaf)
	case !key.Glob && key.Type == short+"Collection" && !entry:
		return newListSource(s, to, u, passed)
	default:
		return failedSource{err: failure(codes.InvalidArgument, "%s is of type %s, where a collection of %s is wanted", u, key.Type, short).Err}
	}
}

// isCollection says whether a locator in a list collection stands for many members.
func isCollection(u urn.URL) bool {
	_, entry := u.Entry()
	return u.Key().Glob || !entry && strings.HasSuffix(u.Key().Type, "Collection")
}

// asError is the error of a name that can mean nothing.
func asError(err error) *cache.Error { return asState(err).Err }

// failedSource is a source that cannot be.
type failedSource struct {
	err  *cache.Error
	down bool // as in condition
}

func (f failedSource) condition() condition {
	return condition{status: cache.Failed, err: f.err, down: f.down}
}
func (failedSource) offered(func(string)) {}
func (failedSource) refresh()             {}
func (failedSource) close()               {}

// step is work of the sources that comes after what called for it.
type step interface {
	// step does some of it, and has itself taken again if there is more.
	step(now time.Time)
	// due is when there is something to be looked at again, zero for never.
	due() time.Time
	// common is what it has in common with the other sources of its node.
	common() *setting
}

func (s *setting) common() *setting { return s }

// begin has a step taken in this round, and again when it is due or reachability
// changes.
func (r *Resolver) begin(s step) {
	r.sets.standing[s] = struct{}{}
	r.todo(s)
}

func (r *Resolver) end(s step) {
	delete(r.sets.standing, s)
	r.sets.times.End(s)
	r.untodo(s)
}

// busy says that there is something to be done yet of which it is not known what it comes
// to.
func (s *setting) busy() bool { return s.unanswered+s.todos > 0 }

// done is for when one thing less is to be done.
func (s *setting) done() {
	if s.todos--; !s.busy() && s.withholds {
		s.changed[s.node] = struct{}{}
	}
}
