package main

import (
	"errors"
	"fmt"
	"time"
)

// A system with clients.

const patience = 2 * time.Minute

// session is a system with a swarm of clients.
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
func (b *bench) beginEmpty(name string, spec *Spec) (*session, error) {
	sys, err := start(name, spec, b.relay)
	if err != nil {
		return nil, err
	}
	s, err := newSession(sys, spec)
	if err != nil {
		sys.stop()
	}
	return s, err
}

// begin starts a system and connects clients. It returns when they have their first state.
func (b *bench) begin(name string, spec *Spec, clients, perConn, deaf int) (*session, error) {
	sys, err := start(name, spec, b.relay)
	if err != nil {
		return nil, err
	}
	s, err := b.join(sys, spec, clients, perConn, deaf)
	if err != nil {
		sys.stop()
	}
	return s, err
}

// beginWarm is begin for a system that has served a client before, so that one-time
// allocations of the process do not count as memory of the clients.
func (b *bench) beginWarm(name string, spec *Spec, connect command) (*session, error) {
	s, err := b.beginEmpty(name, spec)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if err := errors.Join(s.warm(), s.connect(connect)); err != nil {
		s.stop()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return s, nil
}

// join connects clients to a running system.
func (b *bench) join(sys *system, spec *Spec, clients, perConn, deaf int) (*session, error) {
	s, err := newSession(sys, spec)
	if err != nil {
		return nil, err
	}
	if err := s.connect(command{Clients: clients, PerConn: perConn, Deaf: deaf}); err != nil {
		s.swarm.stop()
		return nil, fmt.Errorf("%s: %w", sys.name, err)
	}
	return s, nil
}

func newSession(sys *system, spec *Spec) (*session, error) {
	swarm, err := startRole("swarm", "swarm", spec)
	if err != nil {
		return nil, err
	}
	return &session{system: sys, swarm: swarm, spec: spec, version: 1}, nil
}

// warm connects a client and disconnects it.
func (s *session) warm() error {
	const group = "warm"
	if _, err := s.swarm.do(command{Do: "connect", Group: group, Address: s.server.address, Clients: 1, Spec: s.spec}); err != nil {
		return err
	}
	if _, err := s.swarm.do(command{Do: "await", Group: group, Timeout: patience}); err != nil {
		return err
	}
	if _, err := s.settled(); err != nil {
		return err
	}
	_, err := s.swarm.do(command{Do: "leave", Group: group})
	return err
}

func (s *session) stop() {
	s.swarm.stop()
	s.system.stop()
}

// connect connects clients as c says.
func (s *session) connect(c command) error {
	var err error
	s.clients = c.Clients
	if s.empty, _, err = s.server.rss(); err != nil {
		return err
	}
	before, err := s.server.cpu()
	if err != nil {
		return err
	}
	began := time.Now()
	c.Do, c.Group, c.Address, c.Spec = "connect", "all", s.server.address, s.spec
	if _, err := s.swarm.do(c); err != nil {
		return err
	}
	a, err := s.swarm.do(command{Do: "await", Group: "all", Timeout: patience})
	if err != nil {
		return err
	}
	s.coldLast = time.Unix(0, a.Last).Sub(began)
	after, err := s.settled()
	if err != nil {
		return err
	}
	if s.spec.Glob {
		s.coldLast = time.Since(began) // the first state has several responses
	}
	s.coldCPU = after - before
	s.rest, s.peak, err = s.server.rss()
	return err
}

// comeBack disconnects all clients, and connects them again as c says.
func (s *session) comeBack(c command) error {
	if _, err := s.swarm.do(command{Do: "leave", Group: "all"}); err != nil {
		return err
	}
	if _, err := s.settled(); err != nil {
		return err
	}
	empty := s.empty // memory is compared with that before the first time
	err := s.connect(c)
	s.empty = empty
	return err
}

// settled waits until the server is almost idle, and returns its CPU time.
func (s *session) settled() (time.Duration, error) { return settled(s.server) }

func settled(server *child) (time.Duration, error) {
	last, err := server.cpu()
	for still := 0; err == nil && still < 3; {
		pause(100 * time.Millisecond)
		var now time.Duration
		if now, err = server.cpu(); now-last <= 5*time.Millisecond {
			still++
		} else {
			still = 0
		}
		last = now
	}
	return last, err
}

// updates changes one resource n times, each time after all clients had the last change. It
// returns the CPU time, and the times until the median and the last client had each change.
func (s *session) updates(n int) (cpu time.Duration, median, last []time.Duration, err error) {
	before, err := s.settled()
	if err != nil {
		return 0, nil, nil, err
	}
	for k := range n {
		s.version++
		if _, err := s.swarm.do(command{Do: "watch", Group: "all", Version: s.version}); err != nil {
			return 0, nil, nil, err
		}
		u, err := s.source.do(command{Do: "update", Index: k % s.spec.PerClient, Version: s.version})
		if err != nil {
			return 0, nil, nil, err
		}
		a, err := s.swarm.do(command{Do: "await", Group: "all", Timeout: patience})
		if err != nil {
			return 0, nil, nil, err
		}
		median = append(median, time.Duration(a.Median-u.At))
		last = append(last, time.Duration(a.Last-u.At))
	}
	after, err := s.settled()
	return after - before, median, last, err
}

// stormed runs a storm, and returns the CPU time and the number of messages.
func (s *session) stormed(rate int, of time.Duration, count int) (cpu time.Duration, messages int, err error) {
	before, err := s.settled()
	if err != nil {
		return 0, 0, err
	}
	had, err := s.swarm.do(command{Do: "count"})
	if err != nil {
		return 0, 0, err
	}
	if _, err := s.source.do(command{Do: "storm", Rate: rate, For: of, Count: count, Version: s.version + 1}); err != nil {
		return 0, 0, err
	}
	s.version += int(of.Seconds() * float64(rate))
	after, err := s.settled()
	if err != nil {
		return 0, 0, err
	}
	have, err := s.swarm.do(command{Do: "count"})
	return after - before, int(have.Messages - had.Messages), err
}

// perClient returns the memory of the process per client, in KiB.
func (s *session) perClient(rss int64) float64 {
	return float64(rss-s.empty) / kib / float64(s.clients)
}
