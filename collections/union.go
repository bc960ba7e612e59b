package collections

import (
	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/urn"
)

func newUnion(s *setContext, up sink) *union {
	return &union{setContext: s, sink: up, members: map[string]*candidates{}, contested: map[string]struct{}{}, clashes: map[string]clash{}}
}

// add adds an input. open makes its source.
func (u *union) add(label string, rank int, open func(*input) source) *input {
	p := &input{union: u, label: label, rank: rank, index: len(u.inputs)}
	u.inputs = append(u.inputs, p)
	u.unknown++
	p.source = open(p)
	p.stateChanged()
	return p
}

// remove removes an input. The cost is proportional to its number of members.
func (u *union) remove(p *input) {
	var keys []string
	p.source.keys(func(key string) { keys = append(keys, key) })
	p.source.close()
	for _, key := range keys {
		p.withdraw(key)
	}
	last := len(u.inputs) - 1
	u.inputs[p.index] = u.inputs[last]
	u.inputs[p.index].index = p.index
	u.inputs[last] = nil
	u.inputs = u.inputs[:last]
	if !p.known {
		u.unknown--
	}
	if p.incomplete {
		u.incomplete--
	}
	if p.stale {
		u.stale--
	}
}

// stateChanged implements sink.
func (p *input) stateChanged() {
	if p.source == nil {
		return // add calls it again
	}
	is := p.source.state()
	if known := is.status != cache.Requested; known != p.known {
		p.known = known
		p.union.unknown++
		if known {
			p.union.unknown -= 2
		}
	}
	if is.err != nil && !sameError(is.err, p.failure) {
		p.union.sets.failures.Add(1)
		if log, ok := p.union.logs.collections.Next(p.union.log); ok {
			log.Warn("collection unavailable", "collection", p.label, "error", is.err.Error())
		}
	}
	p.failure = is.err
	if incomplete := is.err != nil && is.err.Inconclusive() || is.partial; incomplete != p.incomplete {
		p.incomplete = incomplete
		p.union.incomplete--
		if incomplete {
			p.union.incomplete += 2
		}
	}
	p.gap = cache.Gap{Glob: is.gap, Awaited: is.awaited}
	if is.stale != p.stale {
		p.stale = is.stale
		p.union.stale--
		if is.stale {
			p.union.stale += 2
		}
	}
	p.union.sink.stateChanged()
}

// set replaces the input's candidate for a key; renewed as in sink.
func (p *input) set(key string, is candidate, renewed bool) {
	u := p.union
	c := u.members[key]
	if c == nil {
		if is == (candidate{}) {
			return
		}
		c = &candidates{}
		u.members[key] = c
	}
	was := p.available
	if c.candidateOf(p).resource != nil {
		p.available--
	}
	if is.resource != nil {
		p.available++
	}
	if u.onFilled != nil && (was == 0) != (p.available == 0) {
		u.onFilled()
	}
	c.set(p, is)
	if c.several != nil {
		u.contested[key] = struct{}{}
	} else {
		delete(u.contested, key)
	}
	u.decide(key, c, p, renewed)
}

func (p *input) withdraw(key string) { p.set(key, candidate{}, false) }

// decide determines the winner of a key. by is the input that has set its candidate, or nil.
func (u *union) decide(key string, c *candidates, by *input, renewed bool) {
	was, best := c.winner, c.leader()
	c.winner = best.candidate
	if _, logged := u.clashes[key]; logged || c.several != nil {
		u.sets.clashKeys[clashKey{u, key}] = struct{}{}
	}
	if c.empty() {
		delete(u.members, key)
	}
	if renewed = renewed && best.from == by; c.winner != was || renewed {
		u.sink.winnerChanged(key, was, c.winner, renewed)
	}
}

// decideAgain determines the winners after the ranks of inputs have changed. all is true if the
// change affects whether the members of an input are used at all. Otherwise only the contested
// keys are decided.
func (u *union) decideAgain(all bool) {
	if all {
		for key, c := range u.members {
			c.reorder()
			u.decide(key, c, nil, false)
		}
		return
	}
	for key := range u.contested {
		c := u.members[key]
		c.reorder()
		u.decide(key, c, nil, false)
	}
}

// state returns the common state of the inputs. An unavailable input does not make the state
// unknown.
func (u *union) state() sourceState {
	if u.unknown > 0 {
		return sourceState{status: cache.Requested}
	}
	var first *input // of those that failed
	for _, p := range u.inputs {
		if p.failure == nil {
			return sourceState{status: cache.Present, partial: u.incomplete > 0, stale: u.stale > 0}
		}
		if first == nil || p.rank < first.rank {
			first = p
		}
	}
	if first == nil {
		return sourceState{status: cache.Present}
	}
	return sourceState{status: cache.Failed, err: first.failure}
}

// gaps returns the globs that are incomplete, if the union is made of globs alone. Members of a list may have any name.
func (u *union) gaps() (gaps []cache.Gap) {
	for _, p := range u.inputs {
		if p.gap.Glob == "" {
			return nil
		}
		if p.incomplete {
			gaps = append(gaps, p.gap)
		}
	}
	return gaps
}

// keys calls yield for the keys of all members.
func (u *union) keys(yield func(string)) {
	for key := range u.members {
		yield(key)
	}
}

func (u *union) refresh() {
	for _, p := range u.inputs {
		p.source.refresh()
	}
}

// refuse records in the cache that a client has refused the winner of a key.
func (u *union) refuse(key string, sent uint32) {
	c := u.members[key]
	if c == nil {
		return
	}
	if best := c.leader(); best.from != nil {
		best.from.source.refuse(key, sent)
	}
}

func (u *union) close() {
	for _, p := range u.inputs {
		p.source.close()
	}
	u.members = nil
}

// candidateOf returns the input's candidate for a key.
func (p *input) candidateOf(key string) candidate {
	if c := p.union.members[key]; c != nil {
		return c.candidateOf(p)
	}
	return candidate{}
}

// addAll adds the collections of a view.
func (u *union) addAll(collections []urn.URL) {
	for i, c := range collections {
		u.add(c.String(), i, func(p *input) source { return u.newCollectionSource(p, c, nil) })
	}
}
