package cache

import (
	"math"
	"strings"
	"time"
)

// Idle scopes. Each costs a stream upstream, however few topics it has. Clients can make up any
// number of scopes, with authorities under a pattern, partitions, or dynamic parameters. So the
// number of idle scopes has its own bound. Beyond it, the cache drops all topics of the scope that
// has been idle the longest.

// idleGroup identifies topics that together keep streams upstream open: the topics of a scope, or
// a single topic with an alternative, which names other authorities.
type idleGroup struct {
	Scope
	alternative string // the topic's name
}

func (k Key) idleGroup() idleGroup {
	g := idleGroup{Scope: k.Scope}
	if k.Scope.Derived != "" && strings.Contains(k.Name, "#alt=") {
		g.alternative = k.Name
	}
	return g
}

// groupTopics are the topics of an idleGroup. Guarded by idle.mu.
type groupTopics struct {
	group  idleGroup
	topics int                 // number of topics, watched ones included
	idle   map[*topic]struct{} // the topics that linger
	room   Room                // of idle
}

// idleGroups has all groups, and in order of their age those in which every topic lingers. Guarded by
// idle.mu.
type idleGroups struct {
	all   map[idleGroup]*groupTopics
	room  Room // of all
	idle  lru[*groupTopics, struct{}]
	limit int
	// steps counts the work, for a test of how it grows.
	steps int
}

func newIdleGroups(limit int) idleGroups {
	g := idleGroups{all: map[idleGroup]*groupTopics{}, idle: newLRU[*groupTopics, struct{}]()}
	g.setLimit(limit)
	return g
}

// setLimit sets how many groups may be idle; 0 is no limit.
func (g *idleGroups) setLimit(limit int) {
	if g.limit = limit; limit <= 0 {
		g.limit = math.MaxInt
	}
}

// created adds a new topic, which somebody is about to watch.
func (i *idle) created(tp *topic) {
	i.mu.Lock()
	defer i.mu.Unlock()
	key := tp.key.idleGroup()
	g := i.groups.all[key]
	if g == nil {
		g = &groupTopics{group: key}
		i.groups.all[key] = g
	}
	g.topics++
	tp.group = g
	i.groups.idle.remove(g)
	i.groups.steps++
}

// gone removes a topic that has ended.
func (i *idle) gone(tp *topic) {
	i.mu.Lock()
	defer i.mu.Unlock()
	g := tp.group
	tp.group = nil
	i.forget(tp)
	g.idle = Without(g.idle, &g.room, tp)
	if g.topics--; g.topics == 0 {
		i.groups.idle.remove(g)
		i.groups.all = Without(i.groups.all, &i.groups.room, g.group)
	} else {
		i.groups.check(g)
	}
	i.groups.steps++
}

// check adds a group to the idle ones if all of its topics linger. The caller holds mu.
func (g *idleGroups) check(group *groupTopics) {
	if len(group.idle) == group.topics {
		g.idle.add(group, struct{}{})
	}
}

// lingers records that nobody watches a topic any more. The caller holds mu.
func (g *idleGroups) lingers(tp *topic) {
	group := tp.group
	if group.idle == nil {
		group.idle = map[*topic]struct{}{}
	}
	group.idle[tp] = struct{}{}
	g.check(group)
	g.steps++
}

// busy records that a topic is watched again. The caller holds mu.
func (g *idleGroups) busy(tp *topic) {
	if group := tp.group; group != nil {
		group.idle = Without(group.idle, &group.room, tp)
		g.idle.remove(group)
	}
	g.steps++
}

// tooManyGroups removes and returns the topics of a group that has to end because there are too
// many idle groups, nil if there are not.
func (i *idle) tooManyGroups() map[*topic]struct{} {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.groups.idle.len() <= i.groups.limit {
		return nil
	}
	g, _, _ := i.groups.idle.oldest()
	return i.groups.take(g)
}

// take removes and returns the topics of a group that has to end. All of them linger. The caller
// holds mu.
func (g *idleGroups) take(group *groupTopics) map[*topic]struct{} {
	g.idle.remove(group)
	topics := group.idle
	group.idle, group.room = nil, 0
	g.steps++
	return topics
}

// giveUpGroups drops groups until there are not too many.
func (i *idle) giveUpGroups() {
	for topics := i.tooManyGroups(); topics != nil; topics = i.tooManyGroups() {
		i.giveUpAll(topics)
	}
}

func (i *idle) giveUpAll(topics map[*topic]struct{}) {
	for tp := range topics {
		if since, ok := tp.idles(); ok {
			i.giveUp(tp, since)
		}
	}
}

// giveUpOldest drops the oldest idle group whose scope matches. If there is none, it drops the oldest
// idle group with an alternative, because one of its other authorities may match. It returns false
// if there is neither.
func (i *idle) giveUpOldest(match func(Scope) bool) bool {
	i.mu.Lock()
	groups := i.groups.idle.keys()
	i.mu.Unlock()
	for _, fits := range [...]func(*groupTopics) bool{
		func(g *groupTopics) bool { return match(g.group.Scope) },
		func(g *groupTopics) bool { return g.group.alternative != "" },
	} {
		for _, g := range groups {
			if fits(g) && i.giveUpGroup(g) {
				return true
			}
		}
	}
	return false
}

// giveUpGroup drops a group, unless one of its topics is watched again.
func (i *idle) giveUpGroup(g *groupTopics) bool {
	i.mu.Lock()
	if _, idle := i.groups.idle.peek(g); !idle {
		i.mu.Unlock()
		return false
	}
	topics := i.groups.take(g)
	i.mu.Unlock()
	i.giveUpAll(topics)
	return true
}

// idles returns the time since when nobody has watched the topic. ok is false if it is watched.
func (t *topic) idles() (since time.Time, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.idleSince, !t.idleSince.IsZero()
}
