package relay

// What clients are subscribed to, under another configuration.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/chain"
	"github.com/xds-relay/xds-relay/configs"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/loglines"
)

// NameChanges are the names, globs and wildcards to which clients are subscribed, each counted once for each
// stream.
type NameChanges struct {
	// Complete says that all were counted. Otherwise the numbers are the least that they can be: there
	// were too many for the time, or for one stream.
	Complete bool `json:"complete"`
	Counted  int  `json:"counted"`
	// Move is how many would be served from another authority, partition or view. Moves says from where to
	// where, the most frequent ones first.
	Move  int    `json:"move"`
	Moves []Move `json:"moves,omitempty"`
	// Denied is how many their clients may have now, and would not by rights or the listener's secrets. Lost
	// is how many are served now, and would not be, because no authority or rule is for them.
	Denied int `json:"denied"`
	Lost   int `json:"lost"`
	// Allowed is how many are refused now, and would be served.
	Allowed int `json:"allowed"`
}

// Move is how many names would be served from another place.
type Move struct {
	From  string `json:"from"`
	To    string `json:"to"`
	Names int    `json:"names"`
}

const (
	// namesOfStream is how many names of one stream are counted.
	namesOfStream = 50_000
	// keptMoves is how many kinds of moves are counted apart, and shownMoves how many are shown.
	keptMoves, shownMoves = 1000, 20
	// namesAtOnce are counted without a look at the time.
	namesAtOnce = 256
)

// nameCheck is what is needed to compare what names mean.
type nameCheck struct {
	before, after *generation
	// listeners are those that stay, and the new ones.
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

// countNames notes which streams would end, and what their names would mean, until ctx ends.
func (r *Relay) countNames(ctx context.Context, changes *Changes, check *nameCheck) {
	n := &NameChanges{Complete: true}
	changes.Names = n
	for s := range r.server.Subscribers(namesOfStream) {
		if ctx.Err() != nil {
			n.Complete = false
			break
		}
		secrets := s.SecretsForAnyone
		if s.Door != nil {
			l := check.listeners[s.Door]
			if l == nil {
				continue // it ends
			}
			if l.options.Admits != nil && l.options.Admits(s.Identity) != nil {
				changes.Streams.EndNotAdmitted++
				continue
			}
			secrets = l.options.SecretsForAnyone
		}
		was := meanings(check.before, s.Client)
		s.SecretsForAnyone = secrets
		is := meanings(check.after, s.Client)
		n.Complete = check.count(ctx, n, s.Types, was, is) && !s.More && n.Complete
		runtime.Gosched()
	}
	for of, names := range check.moves {
		n.Moves = append(n.Moves, Move{of[0], of[1], names})
	}
	slices.SortFunc(n.Moves, func(a, b Move) int {
		return cmp.Or(b.Names-a.Names, cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	n.Moves = n.Moves[:min(len(n.Moves), shownMoves)]
}

// meanings returns what a client's names mean by a generation. It leaves no trace of the client.
func meanings(g *generation, c downstream.Client) *clientNames {
	asks := configs.Client{Node: c.Node, Identity: c.Identity}
	return &clientNames{
		router: g.router, client: asks, views: g.router.ViewMatcher(asks), through: chain.Chain{},
		rights: g.rights.Of(c.Identity, c.SecretsForAnyone),
	}
}

// count compares the names of one stream. It returns whether it had the time.
func (c *nameCheck) count(ctx context.Context, n *NameChanges, types []downstream.SubscribedType, was, is *clientNames) bool {
	for _, of := range types {
		for i, name := range of.Names {
			if i%namesAtOnce == namesAtOnce-1 && ctx.Err() != nil {
				return false
			}
			n.Counted++
			from, before := was.lookUp(of.TypeURL, name)
			to, after := is.lookUp(of.TypeURL, name)
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

// lookUp returns the topic of a name, or why the client does not get it. Unlike Key, it leaves no trace.
func (n *clientNames) lookUp(typeURL, name string) (cache.Key, error) {
	k, err := n.meaning(typeURL, name)
	if err != nil {
		return cache.Key{}, err
	}
	if n.rights != nil {
		if why := cmp.Or(n.rights.may(k), n.rights.besideView(k, n.views)); why != nil {
			return cache.Key{}, why
		}
	}
	return k.Key, nil
}

// isDenial says that a name is refused for who the client is.
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

// placeOfScope returns where a name is served from, for people.
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
