package operator

// References to resources that do not exist. The relay keeps the references of resources only while an operator
// looks: it reads each content once, and forgets all a while after the last look.

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/graph"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

const (
	// readingTakes bounds the time in which one look reads new resources.
	readingTakes = 250 * time.Millisecond
	// mostRead bounds the contents that are remembered, and rememberedFor the time after the last look.
	mostRead      = 200_000
	rememberedFor = time.Minute
	// lookShare is the ratio of the time between looks to the time that a look takes.
	lookShare = 20
)

// references are the references of resources.
type references struct {
	mu     sync.Mutex // held during a look
	of     map[content][]graph.Reference
	forget *time.Timer
	// next is when the next look is due. dangling and unread are the results of the last one.
	next     time.Time
	dangling []danglingReference
	unread   int
	use      use
	touched  touched
}

type content struct {
	typeURL string
	hash    uint64
}

// danglingReference is a resource that names another one that does not exist.
type danglingReference struct {
	from cache.Key
	to   cache.Key
	path string
	// others counts the other resources that name it.
	others int
}

// refers are the types whose references are checked.
var refers = []string{xdstype.ListenerV3, xdstype.RouteV3, xdstype.ScopedRouteV3, xdstype.VirtualHostV3, xdstype.ClusterV3}

// referenceProblems adds the references to resources that do not exist. It returns how many resources have not been
// read yet.
func (r *Observer) referenceProblems(p *problems) (unread int) {
	dangling, unread := r.dangling()
	few(p, dangling, func(d danglingReference) {
		others := ""
		if d.others > 0 {
			others = fmt.Sprintf(" (and %d other resources name it)", d.others)
		}
		p.add(SeverityError, time.Time{}, refOf(d.from).Page(), "%s %q names %s %q, which does not exist%s", xdstype.Word(d.from.TypeURL), loglines.ClipTo(d.from.Name, 200),
			xdstype.Word(d.to.TypeURL), loglines.ClipTo(d.to.Name, 200), others)
	})
	return unread
}

// dangling returns the results of the last look, or looks again if it is time.
func (r *Observer) dangling() (_ []danglingReference, unread int) {
	s := &r.references
	s.mu.Lock()
	defer s.mu.Unlock()
	if began := time.Now(); !began.Before(s.next) {
		l := &look{observer: r, left: readingTakes, by: map[cache.Key]int{}}
		for _, scope := range r.acceptedScopes() {
			for _, typeURL := range refers {
				l.lookAt(scope, typeURL)
			}
		}
		slices.SortFunc(l.dangling, func(a, b danglingReference) int {
			return cmp.Or(cmp.Compare(a.from.Scope.Authority, b.from.Scope.Authority), cmp.Compare(a.from.Scope.Partition, b.from.Scope.Partition), cmp.Compare(a.from.Name, b.from.Name), cmp.Compare(a.to.Name, b.to.Name))
		})
		s.dangling, s.unread = l.dangling, l.unread
		s.next = time.Now().Add(lookShare * time.Since(began))
	}
	s.remember()
	return s.dangling, s.unread
}

// remember keeps the references for another rememberedFor. The caller holds mu.
func (s *references) remember() {
	if s.forget == nil {
		s.forget = time.AfterFunc(rememberedFor, s.forgetAll)
	}
	s.forget.Reset(rememberedFor)
}

// forgetAll forgets all references, because no operator looks any more.
func (s *references) forgetAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of, s.dangling, s.next, s.use, s.touched = nil, nil, time.Time{}, use{}, touched{}
}

// close ends the timer.
func (s *references) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.forget != nil {
		s.forget.Stop()
	}
}

// look is one look at all resources.
type look struct {
	observer *Observer
	left     time.Duration
	dangling []danglingReference
	by       map[cache.Key]int // indexes of dangling, by the key of the resource that does not exist
	unread   int
}

// lookAt checks the resources of one type of a scope.
func (l *look) lookAt(scope cache.Scope, typeURL string) {
	type found struct {
		name     string
		resource *cache.Resource
	}
	var all []found
	l.observer.Cache.Browse(scope, typeURL, func(i cache.Item) bool {
		if i.Resource != nil {
			all = append(all, found{i.Key.Name, i.Resource})
		}
		return true
	})
	for _, f := range all {
		references, read := l.observer.references.read(f.resource, &l.left)
		if !read {
			l.unread++
		}
		for _, to := range references {
			if to.Many || to.Optional {
				continue
			}
			k, ok := l.observer.target(scope, to.To)
			if !ok {
				continue
			}
			if i, known := l.observer.Cache.Look(k); !known || i.Status != cache.Absent {
				continue
			}
			if at, is := l.by[k]; is {
				if l.dangling[at].from.Name != f.name { // the resource is both an entry and a member of a set
					l.dangling[at].others++
				}
				continue
			}
			l.by[k] = len(l.dangling)
			l.dangling = append(l.dangling, danglingReference{from: cache.Key{Scope: scope, TypeURL: typeURL, Name: f.name}, to: k, path: to.Path})
		}
	}
}

// read returns the resources of the same control plane that a resource names. It subtracts its time from left, and
// returns false if no time is left for a resource that was not read before. So each look reads some of them, however
// long it takes to find them. The caller holds mu.
func (s *references) read(r *cache.Resource, left *time.Duration) ([]graph.Reference, bool) {
	id := content{r.TypeURL(), r.Hash()}
	if known, is := s.of[id]; is {
		return known, true
	}
	if *left <= 0 {
		return nil, false
	}
	began := time.Now()
	defer func() { *left -= time.Since(began) }()
	all, err := graph.References(r.TypeURL(), r.Value())
	if err != nil {
		all = nil // the check of resources reports it
	}
	named := slices.DeleteFunc(all, func(to graph.Reference) bool { return to.Source != graph.Stream })
	if s.of == nil {
		s.of = map[content][]graph.Reference{}
	}
	if len(s.of) < mostRead {
		s.of[id] = slices.Clip(named)
	}
	return named, true
}

// rowsTake bounds the time in which a list reads its new resources.
const rowsTake = 50 * time.Millisecond

// noteAbsentNames counts, for each row of a list, the resources that it names and that do not exist.
func (r *Observer) noteAbsentNames(rows []ResourceRow, items []cache.Item) {
	s := &r.references
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remember()
	left := rowsTake
	for i := range rows {
		item := &items[i]
		if item.Resource == nil || !slices.Contains(refers, item.Key.TypeURL) {
			continue
		}
		all, _ := s.read(item.Resource, &left)
		seen := map[cache.Key]bool{}
		for _, to := range all[:min(len(all), mostReferences)] {
			k, ok := r.target(item.Key.Scope, to.To)
			if !ok || to.Many || to.Optional || seen[k] {
				continue
			}
			seen[k] = true
			if of, known := r.Cache.Look(k); known && of.Status == cache.Absent {
				rows[i].NamesAbsent++
			}
		}
	}
}

// target returns the name that a resource of a scope refers to. ok is false if that is not a plain name of an
// authority.
func (r *Observer) target(from cache.Scope, to graph.ID) (k cache.Key, ok bool) {
	if !urn.IsXdstp(to.Name) {
		if !from.OldStyle {
			return k, false // its meaning depends on the client
		}
		return cache.Key{Scope: from, TypeURL: to.TypeURL, Name: to.Name}, true
	}
	k, err := naming.XdstpKey(r.now().Router.Xdstp, to.TypeURL, to.Name)
	return k, err == nil && k.Scope.Derived == ""
}
