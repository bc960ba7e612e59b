package relay

// How clients' subscriptions would change under another configuration.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/internal/loglines"
	"github.com/xds-relay/xds-relay/internal/naming"
	"github.com/xds-relay/xds-relay/operator"
)

const (
	// namesOfStream bounds the names that are counted of one stream.
	namesOfStream = 50_000
	// keptMoves bounds the distinct moves that are counted, and shownMoves those that are shown.
	keptMoves, shownMoves = 1000, 20
	// namesAtOnce is how many names are counted between checks of the time.
	namesAtOnce = 256
)

// nameCheck compares what clients' names mean.
type nameCheck struct {
	before, after *generation
	// listeners are the listeners that stay, and the new ones.
	listeners map[*downstream.Door]*listenerPlan
	moves     map[[2]string]int
}

func newNameCheck(plans []*listenerPlan) *nameCheck {
	c := &nameCheck{listeners: map[*downstream.Door]*listenerPlan{}, moves: map[[2]string]int{}}
	for _, p := range plans {
		c.listeners[p.listener.door] = p
	}
	return c
}

// countNames counts the streams that would end, and compares what the names of the others would mean, until ctx ends.
func (r *Relay) countNames(ctx context.Context, changes *operator.Changes, check *nameCheck) {
	n := &operator.NameChanges{Complete: true}
	changes.Names = n
	for s := range r.server.Subscribers(namesOfStream) {
		if ctx.Err() != nil {
			n.Complete = false
			break
		}
		secrets := s.SecretsForAnyone
		if s.Door != nil {
			l := check.listeners[s.Door]
			if l == nil || l.peers {
				continue // the stream ends, or is of another member of the fleet
			}
			if l.options.Admits != nil && l.options.Admits(s.Identity) != nil {
				changes.Streams.EndNotAdmitted++
				continue
			}
			secrets = l.options.SecretsForAnyone
		}
		was := check.before.rights.For(s.Client)
		s.SecretsForAnyone = secrets
		is := check.after.rights.For(s.Client)
		n.Complete = check.count(ctx, n, s.Types, was, is) && !s.More && n.Complete
		runtime.Gosched()
	}
	for of, names := range check.moves {
		n.Moves = append(n.Moves, operator.Move{From: of[0], To: of[1], Names: names})
	}
	slices.SortFunc(n.Moves, func(a, b operator.Move) int {
		return cmp.Or(b.Names-a.Names, cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	n.Moves = n.Moves[:min(len(n.Moves), shownMoves)]
}

// count compares the names of one stream. It returns false if ctx ended before it was done.
func (c *nameCheck) count(ctx context.Context, n *operator.NameChanges, types []downstream.SubscribedType, was, is *naming.Names) bool {
	for _, of := range types {
		for i, name := range of.Names {
			if i%namesAtOnce == namesAtOnce-1 && ctx.Err() != nil {
				return false
			}
			n.Counted++
			from, before := was.Find(of.TypeURL, name)
			to, after := is.Find(of.TypeURL, name)
			switch {
			case before == nil && after == nil:
				if from != to {
					n.Move++
					c.noteMove(from, to)
				}
			case before != nil && after == nil:
				n.Allowed++
			case before == nil && isDenial(after):
				n.Denied++
			case before == nil:
				n.Lost++
			}
		}
	}
	return true
}

// isDenial reports whether a name is refused because of who the client is.
func isDenial(err error) bool {
	var why *downstream.RefusedError
	return errors.As(err, &why) && (why.Refusal == downstream.RefusedRight || why.Refusal == downstream.RefusedSecret)
}

func (c *nameCheck) noteMove(from, to cache.Key) {
	of := [2]string{placeOfScope(from.Scope), placeOfScope(to.Scope)}
	if _, known := c.moves[of]; known || len(c.moves) < keptMoves {
		c.moves[of]++
	}
}

// placeOfScope returns the place from which a name is served, for people.
func placeOfScope(s cache.Scope) string {
	text := "authority " + loglines.Clip(s.Authority)
	if s.Authority == "" { // of a view
		text = "a view"
	}
	if s.Partition != "" {
		text += fmt.Sprintf(", partition %q", loglines.Clip(s.Partition))
	}
	return text
}
