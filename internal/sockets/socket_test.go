package sockets

import (
	"errors"
	"net"
	"runtime"
	"testing"
	"time"
)

// A turn that has ended does not wait until the next one has accepted a connection.
func TestATurnThatHasEndedDoesNotWait(t *testing.T) {
	s, err := Open(t.Context(), "127.0.0.1:0", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	old, next := s.Turn(), s.Turn()
	accepted := make(chan error, 1)
	go func() {
		conn, err := next.Accept()
		if err == nil {
			err = conn.Close()
		}
		accepted <- err
	}()
	for len(s.accepting) == 0 { // until the next turn accepts
		runtime.Gosched()
	}
	waited := make(chan error, 1)
	go func() {
		_, err := old.Accept()
		waited <- err
	}()
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-waited:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("the turn that has ended returns %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the turn that has ended waits")
	}
	conn, err := net.Dial("tcp", s.Address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := <-accepted; err != nil {
		t.Error(err)
	}
}
