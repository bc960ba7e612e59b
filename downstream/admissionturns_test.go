package downstream

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// rival is one of those that take turns in the model of a line: a part of the streams that are in it.
type rival struct {
	level string
	key   string
	above string // its rivals have the same
}

// rivals returns those to which a stream belongs, one on each level.
func (k memberKey) rivals() []rival {
	proven := fmt.Sprint(k.identity.proven != "")
	id := proven + fmt.Sprint(k.identity)
	return []rival{{"class", proven, ""}, {"identity", id, proven}, {"connection", fmt.Sprintf("%s %p", id, k.conn), id}}
}

// It is never the turn of one that has more places than another one in line. Two that take turns with each other, and
// both have streams in line all the time, get the same number of turns, give or take one, if no one keeps its place. And each stream is admitted when next says at the latest, if no more come.
func TestTurnsAreFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var line turns
		var working, direct []*place // that are kept, with the line and without
		held := map[rival]int{}
		conns := []*limitedConn{nil, new(limitedConn), new(limitedConn), new(limitedConn)}
		inLine := map[rival]int{}
		var order []*place // in line, in the order of their arrival
		// ahead[a][b] is how many turns a had more than b since both have been in line.
		ahead := map[rival]map[rival]int{}
		count := func(w *place, by int) {
			for _, r := range w.conn.key.rivals() {
				if inLine[r] += by; inLine[r] > 0 {
					continue
				}
				delete(inLine, r)
				delete(ahead, r)
				for _, others := range ahead {
					delete(others, r)
				}
			}
		}
		forget := func(w *place) {
			for i := range order {
				if order[i] == w {
					order = append(order[:i:i], order[i+1:]...)
					break
				}
			}
			count(w, -1)
		}
		give := func(at int) {
			w := working[at]
			line.give(w)
			for _, r := range w.conn.key.rivals() {
				held[r]--
			}
			working = slices.Delete(working, at, at+1)
		}
		// admit gives a stream its place, and takes that back unless the stream keeps it.
		admit := func(keeps bool) *place {
			w := line.turn()
			for _, r := range w.conn.key.rivals() {
				for other := range inLine {
					if other == r || other.level != r.level || other.above != r.above {
						continue
					}
					if held[r] > held[other] {
						t.Fatalf("%+v has a turn with %d places, while %+v with %d is in line", r, held[r], other, held[other])
					}
					if keeps || len(working) > 0 {
						delete(ahead, r)
						delete(ahead, other)
						continue
					}
					if ahead[r] == nil {
						ahead[r] = map[rival]int{}
					}
					if ahead[other] == nil {
						ahead[other] = map[rival]int{}
					}
					ahead[r][other]++
					ahead[other][r]--
					if n := ahead[r][other]; n > 1 {
						t.Fatalf("%+v had %d turns more than %+v while both were in line", r, n, other)
					}
				}
			}
			for _, first := range order {
				if first.conn == w.conn {
					if first != w {
						t.Fatal("a stream overtakes another one of its connection")
					}
					break
				}
			}
			forget(w)
			working = append(working, w)
			for _, r := range w.conn.key.rivals() {
				held[r]++
			}
			if !keeps {
				give(len(working) - 1)
			}
			return w
		}
		t.Repeat(map[string]func(*rapid.T){
			"join": func(t *rapid.T) {
				p := party{conn: conns[rapid.IntRange(0, 3).Draw(t, "connection")]}
				switch n := rapid.IntRange(0, 5).Draw(t, "identity"); {
				case n < 3:
					p.identity.proven = fmt.Sprint("id-", n)
				case n < 5:
					p.identity.address = prefixOf(netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}))
				}
				for range rapid.IntRange(1, 5).Draw(t, "streams") {
					w := line.add(line.of(p), new(place))
					order = append(order, w)
					count(w, 1)
				}
			},
			"leave": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip()
				}
				w := order[rapid.IntRange(0, len(order)-1).Draw(t, "who")]
				line.remove(w)
				forget(w)
			},
			"keep": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip()
				}
				admit(true)
			},
			"give": func(t *rapid.T) {
				if len(working) == 0 {
					t.Skip()
				}
				give(rapid.IntRange(0, len(working)-1).Draw(t, "place"))
			},
			"without the line": func(*rapid.T) {
				if w := line.take(new(place)); rapid.Bool().Draw(t, "keeps") {
					direct = append(direct, w)
				} else {
					line.give(w)
				}
			},
			"turn": func(t *rapid.T) {
				if len(order) == 0 {
					t.Skip()
				}
				for range min(len(order), rapid.IntRange(1, 10).Draw(t, "turns")) {
					admit(false)
				}
			},
			"": func(t *rapid.T) {
				if line.waiting() != len(order) || line.working() != len(working)+len(direct) {
					t.Fatalf("%d are in line and %d have a place, want %d and %d", line.waiting(), line.working(), len(order), len(working)+len(direct))
				}
				kept := maps.Clone(inLine)
				for r, n := range held {
					if n > 0 {
						kept[r]++
					}
				}
				maps.DeleteFunc(kept, func(r rival, _ int) bool { return r.level == "class" })
				if len(line.members) != len(kept) {
					t.Fatalf("%d members are kept, want %d", len(line.members), len(kept))
				}
			},
		})
		for len(working) > 0 {
			give(0)
		}
		// One more comes, and then nobody.
		late := line.of(party{identity: identityKey{proven: "id-0"}, conn: conns[1]})
		within := late.next()
		w := line.add(late, new(place))
		order = append(order, w)
		count(w, 1)
		for n := 1; ; n++ {
			if n > within {
				t.Fatalf("a stream is not admitted after %d turns", within)
			}
			if admit(false) == w {
				break
			}
		}
	})
}

// The cost of a turn does not depend on how many wait.
func BenchmarkTurns(b *testing.B) {
	for _, n := range []int{10, 100_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var line turns
			parties := make([]party, n)
			for i := range parties {
				parties[i] = party{identityKey{proven: fmt.Sprint("id-", i)}, new(limitedConn)}
				line.add(line.of(parties[i]), new(place))
			}
			for b.Loop() {
				line.of(parties[rand.IntN(n)]).next()
				line.give(line.turn())
				line.add(line.of(parties[rand.IntN(n)]), new(place))
			}
		})
	}
}
