package main

import "time"

// A system with clients.

const patience = 2 * time.Minute

// session is a system with a swarm of clients. Like scenarios, its methods end at the first
// error: see check.
type session struct {
	*system
	swarm   *child
	spec    *Spec
	clients int
	version int

	empty, rest, peak int64         // resident bytes: without clients, with idle clients, peak
	coldCPU           time.Duration // for connecting and the first state
	coldLast          time.Duration // until the last client had it
}

// beginEmpty starts a system and a swarm without clients.
func (b *bench) beginEmpty(name string, spec *Spec) *session {
	return b.join(b.start(name, spec), spec)
}

// begin starts a system and connects clients. It returns when they have their first state.
func (b *bench) begin(name string, spec *Spec, clients, perConn, deaf int) *session {
	s := b.beginEmpty(name, spec)
	s.connect(command{Clients: clients, PerConn: perConn, Deaf: deaf})
	return s
}

// beginWarm is begin for a system that has served a client before, so that one-time
// allocations of the process do not count as memory of the clients.
func (b *bench) beginWarm(name string, spec *Spec, connect command) *session {
	s := b.beginEmpty(name, spec)
	s.warm()
	s.connect(connect)
	return s
}

// join starts a swarm without clients next to a running system.
func (b *bench) join(sys *system, spec *Spec) *session {
	return &session{system: sys, swarm: b.role("swarm", "swarm", spec), spec: spec, version: 1}
}

// warm connects a client and disconnects it.
func (s *session) warm() {
	const group = "warm"
	must(s.swarm.do(command{Do: "connect", Group: group, Address: s.server.address, Clients: 1, Spec: s.spec}))
	must(s.swarm.do(command{Do: "await", Group: group, Timeout: patience}))
	s.settled()
	must(s.swarm.do(command{Do: "leave", Group: group}))
}

func (s *session) stop() {
	s.swarm.stop()
	s.system.stop()
}

// connect connects clients as c says.
func (s *session) connect(c command) {
	s.clients = c.Clients
	s.empty, _ = s.memory()
	before := must(s.server.cpu())
	began := time.Now()
	c.Do, c.Group, c.Address, c.Spec = "connect", "all", s.server.address, s.spec
	must(s.swarm.do(c))
	s.coldLast = time.Unix(0, s.await().Last).Sub(began)
	after := s.settled()
	if s.spec.Glob {
		s.coldLast = time.Since(began) // the first state has several responses
	}
	s.coldCPU = after - before
	s.rest, s.peak = s.memory()
}

// connectForAll connects clients that count the resources they receive, so that await waits
// until they have all: the number of resources in a response varies.
func (s *session) connectForAll(clients int) {
	s.clients = clients
	must(s.swarm.do(command{
		Do: "connect", Group: "all", Address: s.server.address, Clients: clients, Spec: s.spec,
		Each: true, Count: clients * len(s.spec.indexes(0)),
	}))
}

// comeBack disconnects all clients, and connects them again as c says.
func (s *session) comeBack(c command) {
	must(s.swarm.do(command{Do: "leave", Group: "all"}))
	s.settled()
	empty := s.empty // memory is compared with that before the first time
	s.connect(c)
	s.empty = empty
}

// await waits until all clients have what they watch for.
func (s *session) await() answer {
	return must(s.swarm.do(command{Do: "await", Group: "all", Timeout: patience}))
}

// watch has the clients watch for a version.
func (s *session) watch(version int) {
	must(s.swarm.do(command{Do: "watch", Group: "all", Version: version}))
}

// counted returns what the clients have received so far.
func (s *session) counted() answer { return must(s.swarm.do(command{Do: "count"})) }

// latencies returns the latencies since the last call.
func (s *session) latencies() answer { return must(s.swarm.do(command{Do: "latency"})) }

// memory returns the resident memory of the server and its peak, in bytes.
func (s *session) memory() (now, peak int64) {
	now, peak, err := s.server.rss()
	check(err)
	return now, peak
}

// settled waits until the server is almost idle, and returns its CPU time.
func (s *session) settled() time.Duration { return settled(s.server) }

func settled(server *child) time.Duration {
	last := must(server.cpu())
	for still := 0; still < 3; {
		pause(100 * time.Millisecond)
		now := must(server.cpu())
		if now-last <= 5*time.Millisecond {
			still++
		} else {
			still = 0
		}
		last = now
	}
	return last
}

// updates changes one resource n times, each time after all clients had the last change. It
// returns the CPU time, and the times until the median and the last client had each change.
func (s *session) updates(n int) (cpu time.Duration, median, last []time.Duration) {
	before := s.settled()
	for k := range n {
		s.version++
		s.watch(s.version)
		u := must(s.source.do(command{Do: "update", Index: k % s.spec.PerClient, Version: s.version}))
		a := s.await()
		median = append(median, time.Duration(a.Median-u.At))
		last = append(last, time.Duration(a.Last-u.At))
	}
	return s.settled() - before, median, last
}

// storm makes updates of the first count resources at a rate.
func (s *session) storm(rate int, during time.Duration, count int) {
	must(s.source.do(command{Do: "storm", Rate: rate, For: during, Count: count, Version: s.version + 1}))
	s.version += int(during.Seconds() * float64(rate))
}

// stormed is storm, and returns the CPU time and the number of messages.
func (s *session) stormed(rate int, during time.Duration, count int) (cpu time.Duration, messages int) {
	before, had := s.settled(), s.counted()
	s.storm(rate, during, count)
	after := s.settled()
	return after - before, int(s.counted().Messages - had.Messages)
}

// perClient returns the memory of the process per client, in KiB.
func (s *session) perClient(rss int64) float64 {
	return float64(rss-s.empty) / kib / float64(s.clients)
}
