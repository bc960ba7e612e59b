package cache

import (
	"math"
	"strings"
	"weak"

	"google.golang.org/grpc/mem"
)

// What newcomers to a set with many members are told: a chunk of them at a time, in one
// buffer that all newcomers share.

// Run are members that follow each other in the order of their changes, in the form of
// delta that all clients understand.
type Run struct {
	Resources []*Resource
	// Names are the first few of the resources' names, for who keeps them longer.
	Names []string
	delta mem.SliceBuffer
}

// Delta is a DeltaDiscoveryResponse with nothing but the resources.
func (r *Run) Delta() mem.Buffer { return &r.delta } // who has it keeps the run

// A run is made of not fewer members than leastRun, and not of more bytes for each than
// mostEach: to copy large resources is no gain.
const (
	leastRun = 2
	mostEach = 4 << 10
	runNames = 16
)

// Runs are how a watcher is told of many members at once. It must be one to whom no
// member means anything but that it is there.
type Runs struct {
	Form Form
	// Most is the most bytes that a run may have.
	Most int
	// Yield is called with the runs, as the function that Since is given is with what
	// is not in a run.
	Yield func(*Run) bool
}

// SinceRuns is Since, but that members are told in runs where that can be.
func (s *Set) SinceRuns(w *SetWatch, runs *Runs, yield func(Member) bool) (all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := w.ahead
	if !w.within {
		w.begin, w.passed, w.within = w.seq, s.seq, true
	}
	most := s.mostOf(w, runs)
	for c, i := s.members.start(w.seq); c != nil; c, i = c.next, 0 {
		if i == 0 && most > 0 {
			if run := c.run(most); run != nil {
				if !runs.Yield(run) {
					return false
				}
				w.seq, w.ahead = c.end(), c.end()
				continue
			}
		}
		for ; i < len(c.records); i++ {
			if c.records[i].resource == nil {
				continue
			}
			m := s.members.read(c, i)
			news := Changed
			if m.removed {
				news = Removed
			}
			switch {
			case news == Changed && s.keptUntil(w, m, w.passed):
			case news == Removed && (m.born > told || m.seq <= told):
				// One that came and went since was never known.
			case !yield(Member{Name: m.resource.Name(), News: news, Resource: m.resource, Was: s.formerly(m).resource}):
				return false
			}
			w.seq, w.ahead = m.seq, max(w.ahead, m.seq)
		}
	}
	w.seq, w.ahead = s.seq, s.seq
	for n := range s.notes.after(w.noted) {
		if t, ok := s.tellOf(w, n, w.begin); ok && !yield(t) {
			return false
		}
		w.noted = n.seq
	}
	w.noted, w.within = s.seq, false
	if w.joined > 0 && !s.keeps(w) {
		w.joined = 0
	}
	return true
}

// mostOf returns how many bytes the runs may have that w's watcher is told: none if the
// set has something that is not the same for all.
func (s *Set) mostOf(w *SetWatch, r *Runs) (most int) {
	switch {
	case r == nil || w.ahead > w.seq:
		// It may know members that are removed since.
	case r.Form&(ByLocator|Heartbeat) != 0 || r.Form&WithTTL != 0 && s.withTTL > 0:
	case s.withheld > 0 || s.redirects > 0:
	default:
		return r.Most
	}
	return 0
}

// run returns a chunk as a run, nil if it is not to be told as one. It is made when it is
// needed, and is there for as long as somebody is being told and some time longer, until
// the garbage collector comes: sets are not held twice for newcomers who do not come.
func (c *chunk) run(most int) *Run {
	most = min(most, c.live*mostEach)
	if c.live < leastRun || c.unfit > most {
		return nil
	}
	if r := c.made.Value(); r != nil && len(r.delta) <= most {
		return r
	}
	size := 0
	for i := range c.records {
		switch r := &c.records[i]; {
		case r.resource == nil:
		case r.flags&removed != 0:
			c.unfit = math.MaxInt
			return nil
		default:
			size += len(r.resource.delta)
		}
	}
	if size > most {
		c.unfit = size
		return nil
	}
	run := &Run{Resources: make([]*Resource, 0, c.live), delta: make([]byte, 0, size)}
	for i := range c.records {
		if r := c.records[i].resource; r != nil {
			run.Resources = append(run.Resources, r)
			run.delta = append(run.delta, r.delta...)
		}
	}
	for _, r := range run.Resources[:min(runNames, len(run.Resources))] {
		run.Names = append(run.Names, strings.Clone(r.Name()))
	}
	c.made = weak.Make(run)
	return run
}

// end is a position behind all members of the chunk, and before those of the next.
func (c *chunk) end() uint64 { return c.base + uint64(c.records[len(c.records)-1].seq) }

// changed says that the chunk is another than it was.
func (c *chunk) changed() { c.made, c.unfit = weak.Pointer[Run]{}, 0 }
